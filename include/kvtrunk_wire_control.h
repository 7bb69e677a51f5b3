/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_CONTROL_H
#define KVTRUNK_WIRE_CONTROL_H

/**
 * @file kvtrunk_wire_control.h
 * Messages of the control socket: fixed structs on a SOCK_SEQPACKET socket, one message a packet.
 */

#include <stdint.h>

#include "kvtrunk_wire_base.h"

#define KVT_DEFAULT_SOCKET "/run/kvtrunk/default.sock"
#define KVT_MESSAGE_MAGIC 0x5456414bu /* "KAVT" */
#define KVT_MESSAGE_MAX 65536u        /* bytes in one packet */

enum kvt_message_type {
	KVT_MSG_HELLO = 1,      /* client: open a session (or observe) */
	KVT_MSG_WELCOME = 2,    /* daemon: + descriptors */
	KVT_MSG_REFUSED = 3,    /* daemon: errno and a sentence */
	KVT_MSG_NAMESPACE = 4,  /* client: open a namespace; daemon: its number */
	KVT_MSG_ADMIN = 5,      /* client: one admin request; daemon: one answer page */
	KVT_MSG_GOODBYE = 6,    /* daemon: the session is over, and why */
	KVT_MSG_GROUP = 7,      /* client: others will join its session; daemon: the token */
	KVT_MSG_RENEW = 8,      /* client: raise a namespace's generation; daemon: the new one */
	KVT_MSG_FEED = 9,       /* client: subscribe, or no more; daemon: + descriptor */
};

struct kvt_message {
	uint32_t magic;
	uint16_t type;    /* enum kvt_message_type */
	uint16_t version; /* KVT_ABI */
	uint32_t bytes;   /* of the whole message, this header included */
	int32_t result;   /* answers: 0 or negative errno */
	uint64_t cookie;  /* copied from the request */
};
_Static_assert(sizeof(struct kvt_message) == 24, "kvt_message");

_Static_assert(sizeof(struct kvt_pool_geometry) == 32 + 8 * KVT_MAX_LAYERS,
	       "kvt_pool_geometry");

/** First message on a connection. A size or count of 0 means "the daemon's"; anything else must be
 * equal, or the answer is REFUSED with the difference named. Each field of the fingerprint
 * (name=value, or a word, between semicolons) must be one of the daemon's. If the daemon has a
 * geometry or a fingerprint, a session or a member of a group must name one of the two, or say
 * KVT_ANY_GEOMETRY: it would write its KV where others read theirs. */
struct kvt_message_hello {
	struct kvt_message head;
	uint32_t reserved;
	uint32_t flags;
	uint64_t layout;
	uint32_t page_size;
	uint32_t n_pages;
	uint64_t page_bytes;
	uint32_t sq_entries; /* requested; rounded up to powers of two within the daemon's limits */
	uint32_t cq_entries;
	uint32_t keys_count; /* u32 elements of the key area */
	uint32_t list_count;
	int32_t pid;         /* getpid() of the caller: refused if it is not the connector */
	uint32_t rank;       /* with `group`: which one the caller is */
	uint64_t secret[2];  /* WELCOME's: resume that session; 0 = no */
	uint64_t group[2];   /* token: join that session instead of opening one; 0 = no */
	char fingerprint[KVT_FINGERPRINT_BYTES];
	char label[KVT_LABEL_BYTES];
	struct kvt_pool_geometry geometry;
};

/** Descriptors that come with WELCOME, in this order, those whose bit is set in `fds`. */
enum kvt_welcome_fd {
	KVT_FD_SEGMENT = 1u << 0,
	KVT_FD_AREAS = 1u << 1,      /* key area and list area; none for a member of a group */
	KVT_FD_DOORBELL = 1u << 2,   /* eventfd: client writes when sq_need_wakeup */
	KVT_FD_COMPLETION = 1u << 3, /* readable once rung after cq_need_wakeup: read 8 bytes */
	KVT_FD_ARENA = 1u << 4,      /* O_RDONLY */
	KVT_FD_POOL = 1u << 5,       /* host and cuda-vmm: one for each slab, in their order */
	KVT_FD_MIRROR = 1u << 6,     /* of a session with KVT_MIRROR: last, after all slabs */
};

/** How a client opens one slab. A device is named by its UUID, because ordinals differ from process
 * to process (CUDA_VISIBLE_DEVICES); under MIG it is that of the MIG instance. The other fields
 * name causes of failure: the driver's own errors mislead. */
struct kvt_slab_record {
	uint8_t ipc_handle[64]; /* cuda-ipc: of cuIpcGetMemHandle, else 0 */
	uint8_t device_uuid[16]; /* 0: host memory */
	int32_t device;          /* the daemon's ordinal, -1: host memory */
	uint32_t flags;          /* 0 */
	uint32_t driver;         /* cuda: cuDriverGetVersion of the daemon, e.g. 12040 */
	uint32_t pid_namespace;  /* of the daemon: inode of /proc/PID/ns/pid, 0 unknown */
	uint32_t user;           /* cuda: of the daemon, its effective uid + 1; 0 unknown */
	uint32_t reserved[7];
};
_Static_assert(sizeof(struct kvt_slab_record) == 128, "kvt_slab_record");

enum kvt_welcome_flag {
	KVT_WELCOME_PRIVILEGED = 1u << 0,
	KVT_WELCOME_DISABLED = 1u << 1,   /* caching is */
	KVT_WELCOME_TEST_CLOCK = 1u << 2,
	KVT_WELCOME_KEPT = 1u << 3,       /* all of it outlives this daemon */
	KVT_WELCOME_RESUMED = 1u << 4,    /* the session that HELLO's secret names continues */
};

struct kvt_message_welcome {
	struct kvt_message head;
	uint32_t fds; /* enum kvt_welcome_fd */
	uint32_t session;
	uint32_t page_size;
	uint32_t n_pages;
	uint64_t page_bytes;
	uint64_t pool_bytes; /* per slab */
	uint32_t backend;    /* enum kvt_pool_backend */
	uint32_t n_slabs;
	uint64_t segment_bytes;
	uint64_t areas_bytes;
	uint64_t arena_bytes;
	uint64_t epoch;
	uint64_t instance[2];
	uint64_t secret[2];
	uint32_t max_leases;
	uint32_t max_private_pages;
	uint32_t policy;
	uint32_t flags; /* enum kvt_welcome_flag */
	int32_t daemon_pid;
	uint32_t sealer; /* number of the session in the records of pages that it seals */
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_slab_record slabs[KVT_MAX_SLABS]; /* n_slabs of them; none for observers */
	struct kvt_pool_geometry geometry;
	uint32_t rank;    /* of a member; 0 for the session's opener */
	uint32_t n_ranks; /* of its group, 0 = none */
	uint32_t n_sides; /* kinds of side pages */
	uint32_t side_pages[KVT_MAX_SIDES]; /* of each: trailing pages of a path that need one */
	uint32_t reserved;
};

enum kvt_session_state {
	KVT_SESSION_FREE = 0,
	KVT_SESSION_OPEN = 1,
	KVT_SESSION_CLOSING = 2, /* CLOSE seen, its fence not reached */
	KVT_SESSION_DYING = 3,   /* over; leases and pages are being taken back */
	KVT_SESSION_DEAD = 4,    /* holds nothing but quarantined pages */
};

enum kvt_session_sign {
	KVT_SIGN_HANGUP = 1u << 0,  /* the control socket hung up */
	KVT_SIGN_EXITED = 1u << 1,  /* the pidfd fired */
	KVT_SIGN_QUIET = 1u << 2,   /* the pool backend agrees: no work in flight can write */
	KVT_SIGN_FENCED = 1u << 3,  /* declared by an operator */
	KVT_SIGN_CLOSED = 1u << 4,  /* ended by CLOSE: pages left at its fence */
};

struct kvt_message_refused {
	struct kvt_message head;
	char text[KVT_TEXT_BYTES]; /* cause and cure, one sentence, NUL-terminated */
	uint32_t state;            /* enum kvt_attach_state; GOODBYE: 0 */
	uint32_t reserved;
};

/** NAMESPACE and RENEW. RENEW raises the generation by one unless it is above `generation` already,
 * and answers it: so a repeated request, or two clients that saw the same one, raise it once. */
struct kvt_message_namespace {
	struct kvt_message head;
	uint64_t digest[2];    /* NAMESPACE */
	uint32_t namespace_id; /* answer; request of RENEW: open in the session */
	uint32_t generation;   /* answer; request of RENEW: the last one seen */
	char label[KVT_LABEL_BYTES];
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

/** Open a group on the connection's session, and the answer. */
struct kvt_message_group {
	struct kvt_message head;
	uint32_t n_ranks; /* rank 0, the session's own process, included */
	uint32_t reserved;
	uint64_t token[2]; /* chosen by the caller, 0 = random; answer: the group's */
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

#endif
