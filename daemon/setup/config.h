/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_CONFIG_H
#define KVT_DAEMON_SETUP_CONFIG_H

/**
 * @file config.h
 * Configuration: the options of options.h, and each source that sets them. command.h combines the
 * sources.
 *
 * Functions that can fail take `why`, a buffer of KVT_WHY_BYTES. On failure it holds a sentence
 * with place, key, the given value and the allowed ones.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/setup/options.h"
#include "kvtrunk_types.h"

#define KVT_WHY_BYTES 512
#define KVT_CONFIG_VARIABLE "KVTRUNKD_" /* prefix of our environment variables */
#define KVT_CONFIG_TEXT_BYTES 256
#define KVT_ORIGIN_BYTES 128

/** A number, or a percentage of the pool or of free memory. */
struct kvt_share {
	int64_t value;
	int64_t percent; /* 1: `value` is a percentage (no padding: reload compares bytes) */
};

#define KVT_FIELD_TEXT(key) char key[KVT_CONFIG_TEXT_BYTES];
#define KVT_FIELD_NUMBER(key) int64_t key;
#define KVT_FIELD_BYTES(key) int64_t key;
#define KVT_FIELD_BOOL(key) bool key;
#define KVT_FIELD_CHOICE(key) uint32_t key; /* index into its choices */
#define KVT_FIELD_SHARE(key) struct kvt_share key;
#define KVT_FIELD_BUDGET(key) struct kvt_share key;
#define KVT_FIELD_MODE(key) int64_t key;
#define KVT_FIELD(type, key, fallback, minimum, maximum, choices, when, help) KVT_FIELD_##type(key)

#define KVT_OPTION_ONE(type, key, fallback, minimum, maximum, choices, when, help) +1

enum { KVT_OPTION_COUNT = 0 KVT_DAEMON_OPTIONS(KVT_OPTION_ONE) };

struct kvt_config {
	KVT_DAEMON_OPTIONS(KVT_FIELD)
	/* Where each option was set, in the table's order: "default", "--policy", "FILE:12". */
	char origins[KVT_OPTION_COUNT][KVT_ORIGIN_BYTES];
	char note[2 * KVT_ORIGIN_BYTES + 80]; /* an option that another one overrides; "": none */
};

enum kvt_hugepages { KVT_HUGEPAGES_AUTO = 0, KVT_HUGEPAGES_NO = 1, KVT_HUGEPAGES_REQUIRE = 2 };

enum kvt_event_loop {
	KVT_EVENT_LOOP_AUTO = 0,
	KVT_EVENT_LOOP_IO_URING = 1,
	KVT_EVENT_LOOP_EPOLL = 2,
};

enum kvt_mps { KVT_MPS_AUTO = 0, KVT_MPS_YES = 1, KVT_MPS_NO = 2 };

void kvt_config_init(struct kvt_config *config);

/** Set one option from text. `place` begins the error: "FILE:12" or "--policy". */
int kvt_config_set(struct kvt_config *config, const char *place, const char *key,
		   const char *value, char why[KVT_WHY_BYTES]);

/** Read a file. Keys are in a section [kvtrunkd] or in none. */
int kvt_config_load(struct kvt_config *config, const char *path, char why[KVT_WHY_BYTES]);

/** Set options from the environment: KVTRUNKD_KEY. KVTRUNKD_CONFIG is no option, see
 * kvt_config_parse(). */
int kvt_config_load_environment(struct kvt_config *config, char why[KVT_WHY_BYTES]);

/** Set the option of argv[0]: "--key=value", "--key" "value", and of a BOOL "--key" or "--no-key".
 * `left`: the number of arguments. Returns the number consumed, or a negative errno. */
int kvt_config_flag(struct kvt_config *config, int left, char **argv, char why[KVT_WHY_BYTES]);

/** Settle which of n_pages and pool_bytes gives the pool's size: a flag before a variable before a
 * file; the other one is noted. -EINVAL with `why`: both were set in one place. */
int kvt_config_settle_size(struct kvt_config *config, char why[KVT_WHY_BYTES]);

/** Refuse a setting that another one leaves without effect. -EINVAL with `why`. */
int kvt_config_check_vain(const struct kvt_config *config, char why[KVT_WHY_BYTES]);

/** Copy the options that may change while running. `ret_changed` gets their names, `ret_fixed` the
 * names of options that differ and need a restart, both separated by blanks. */
void kvt_config_reload(struct kvt_config *config, const struct kvt_config *fresh,
		       char ret_changed[KVT_WHY_BYTES], char ret_fixed[KVT_WHY_BYTES]);

/** Format the value as in a file. */
const char *kvt_config_get(const struct kvt_config *config, const char *key, char *to,
			   size_t size);

/** Parse the option `sides`: how many kinds, and of each the pages that need one. */
int kvt_config_sides(const struct kvt_config *config, uint32_t *ret_n,
		     uint32_t ret_pages[KVT_MAX_SIDES], char why[KVT_WHY_BYTES]);

struct kvt_core_config;
struct kvt_admin_option;
/** Parse the option `namespace_pages` into the limits of namespaces; needs to->n_pages. */
int kvt_config_limits(const struct kvt_config *config, struct kvt_core_config *to,
		      char why[KVT_WHY_BYTES]);

/** Describe option number `index` for KVT_ADMIN_CONFIG; `used` is as configured. False: there are
 * fewer. */
bool kvt_config_describe(const struct kvt_config *config, uint32_t index,
			 struct kvt_admin_option *ret_option);

/** Name of a choice, e.g. kvt_config_choice("policy", 0) is "lru". */
const char *kvt_config_choice(const char *key, uint32_t index, char *to, size_t size);

void kvt_config_help(FILE *to, bool all);
/** Print a line for each option: key TAB type TAB default TAB allowed TAB start|reload TAB help. */
void kvt_config_dump(FILE *to);

#endif
