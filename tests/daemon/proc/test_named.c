/* SPDX-License-Identifier: Apache-2.0 */

/* What a client must name about pages before it gets them, what the daemon answers, and where pages
 * lie.
 *
 * Inputs: the daemon's options, and the geometry or fingerprint of the client. Invariant: a client
 * that could write other KV is refused, with the difference named. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/lib/raw.h"

#define SHAPE "n_layers = 2\nn_kv_heads = 2\nhead_dim = 8\nkv_type = fp16\npage_bytes = 0\n"
#define LATENT                                                                                    \
	"n_layers = 2\nn_kv_heads = 1\nhead_dim = 24\nkv_layout = latent\npage_bytes = 0\n"

static const struct kvt_pool_geometry shape = { .n_layers = 2, .n_kv_heads = 2, .head_dim = 8,
						.type = KVT_ELEMENT_FP16 };

static struct kvt_options options_of(uint32_t flags, const char *fingerprint,
				     const struct kvt_pool_geometry *geometry)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon_.socket;
	options.flags = flags;
	options.fingerprint = fingerprint;
	options.geometry = geometry;
	return options;
}

static void accepted(struct kvt_options options)
{
	struct kvt_client *client;
	struct kvt_error error;

	if (kvt_client_connect(&client, &options, &error) != 0)
		kvt_test_fail("refused: %s", error.text);
	kvt_client_close(client, KVT_IDLE);
}

static void refused(struct kvt_options options, const char *words)
{
	struct kvt_error error = { .code = 0 };
	struct kvt_client *client;

	kvt_test_equal(kvt_client_connect(&client, &options, &error), -EINVAL);
	kvt_test_equal(error.code, -EINVAL);
	kvt_test_equal(error.attach_state, KVT_ATTACH_WRONG_GEOMETRY);
	if (!strstr(error.text, words))
		kvt_test_fail("'%s' says nothing of '%s'", error.text, words);
}

TEST(a_session_names_what_it_takes_pages_for)
{
	static const char *const configs[] = { SHAPE, "fingerprint = weights=abc\n" };

	for (int i = 0; i < 2; i++) {
		kvt_test_daemon_begin(&daemon_, configs[i]);
		refused(options_of(0, NULL, NULL), "KVT_ANY_GEOMETRY");
		refused(options_of(KVT_HELLO_NO_RESUME, "", NULL), "options.fingerprint");
		accepted(options_of(KVT_ANY_GEOMETRY, NULL, NULL));
		accepted(options_of(KVT_HELLO_OBSERVE, NULL, NULL));
		kvt_test_daemon_end(&daemon_);
	}
	kvt_test_daemon_begin(&daemon_, NULL); /* page_bytes: no geometry to name */
	accepted(options_of(0, NULL, NULL));
	kvt_test_daemon_end(&daemon_);
}

TEST(sides_are_asked_for_and_name_no_content)
{
	kvt_test_daemon_begin(&daemon_, SHAPE "sides = 2,1\n");
	accepted(options_of(0, "sides=2,1", &shape));
	accepted(options_of(KVT_ANY_GEOMETRY, "sides=2,1", NULL));
	refused(options_of(0, "sides=2,1", NULL), "KVT_ANY_GEOMETRY");
	refused(options_of(KVT_ANY_GEOMETRY, "sides=", NULL), "drop 'sides'");
	refused(options_of(KVT_ANY_GEOMETRY, "sides=3", NULL), "put 'sides = 3' into");
	kvt_test_daemon_end(&daemon_);
	kvt_test_daemon_begin(&daemon_, "sides = 1\n"); /* page_bytes: no other content to name */
	accepted(options_of(0, "sides=1", NULL));
	kvt_test_daemon_end(&daemon_);
}

TEST(a_member_names_it_too)
{
	struct kvt_options options;
	struct kvt_group_token token;
	struct kvt_client *leader, *member;

	kvt_test_daemon_begin(&daemon_, SHAPE);
	options = options_of(0, NULL, &shape);
	kvt_test_equal(kvt_client_connect(&leader, &options, NULL), 0);
	kvt_test_equal(kvt_group_open(leader, 2, NULL, &token), 0);
	options = options_of(0, NULL, NULL);
	options.group = &token;
	options.rank = 1;
	refused(options, "KVT_ANY_GEOMETRY");
	options.geometry = &shape;
	kvt_test_equal(kvt_client_connect(&member, &options, NULL), 0);
	kvt_client_close(leader, KVT_IDLE);
	kvt_client_close(member, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

TEST(a_difference_is_told_as_the_client_sees_it)
{
	struct kvt_pool_geometry other = shape;
	struct kvt_options options;

	kvt_test_daemon_begin(&daemon_, SHAPE "fingerprint = weights=abc\n");
	accepted(options_of(0, NULL, &shape)); /* scales of 0 are the default */
	accepted(options_of(0, "weights=abc", NULL));
	accepted(options_of(0, "kv=fp16.2x2x8;weights=abc", &shape));
	refused(options_of(0, "weights=abd", &shape),
		"the daemon has 'weights=abc', the client asked for 'weights=abd'");
	refused(options_of(0, "weights=abc;tokenizer=t", NULL), "'tokenizer=t'");
	other.n_layers = 3;
	refused(options_of(0, NULL, &other), "the daemon has n_layers 2, the client asked for 3");
	other = shape;
	other.order = KVT_ORDER_PAGE;
	refused(options_of(0, NULL, &other),
		"the daemon has kv_order layer, the client asked for page");
	other = shape;
	other.layout = KVT_LAYOUT_HNKD;
	refused(options_of(0, NULL, &other),
		"the daemon has kv_layout hnd, the client asked for hnkd");
	other = shape;
	other.scales[1][0] = 0.5f;
	refused(options_of(0, NULL, &other),
		"the daemon has scales 1,1 for layer 1, the client asked for 0.5,1");
	options = options_of(KVT_HELLO_OBSERVE, NULL, NULL);
	options.page_size = 32;
	refused(options, "the daemon has page_size 16, the client asked for 32");
	kvt_test_daemon_end(&daemon_);
}

TEST(a_library_of_another_abi_is_refused_with_the_cure)
{
	struct kvt_message_hello hello = kvt_test_hello(KVT_ANY_GEOMETRY);
	struct kvt_message_refused answer;
	struct pollfd look;
	char text[128];

	kvt_test_daemon_begin(&daemon_, "");
	look = (struct pollfd){ .fd = kvt_test_dial(&daemon_), .events = POLLIN };
	hello.head.version--;
	kvt_test_check(send(look.fd, &hello, sizeof(hello), 0) == sizeof(hello));
	kvt_test_equal(poll(&look, 1, -1), 1);
	kvt_test_equal(recv(look.fd, &answer, sizeof(answer), 0), sizeof(answer));
	kvt_test_equal(answer.head.type, KVT_MSG_REFUSED);
	snprintf(text, sizeof(text), "version differs: the daemon speaks ABI %u, the client %u: "
		 "install libkvtrunk and kvtrunkd of one release", KVT_ABI, KVT_ABI - 1);
	kvt_test_check(strcmp(answer.text, text) == 0);
	close(look.fd);
	kvt_test_daemon_end(&daemon_);
}

/* The address of a page that is not in one piece would be inside other pages. */
TEST(a_page_has_an_address_where_it_is_in_one_piece)
{
	static const char *const configs[] = { "", SHAPE, SHAPE "kv_order = page\n",
					       SHAPE "kv_order = page\nkv_layout = hnkd\n" };

	for (int i = 0; i < 4; i++) {
		struct kvt_client *client;
		struct kvt_pool_view view;
		struct kvt_pool pool;
		uint64_t bytes;

		kvt_test_daemon_begin(&daemon_, configs[i]);
		client = kvt_test_connect(&daemon_);
		bytes = kvt_client_info(client)->page_bytes;
		kvt_test_equal(kvt_pool_map(client, &pool), 0);
		for (uint32_t page = 0; page < pool.n_pages; page++)
			kvt_test_check(kvt_page_address(&pool, page) ==
				       (i == 1 ? NULL : (char *)pool.base + page * bytes));
		kvt_test_check(kvt_page_address(&pool, pool.n_pages) == NULL);
		kvt_test_check(kvt_page_address(&pool, UINT32_MAX) == NULL);
		kvt_test_equal(kvt_pool_view(client, &pool, 0, &view), i ? 0 : -ENODATA);
		kvt_client_close(client, KVT_IDLE);
		kvt_test_daemon_end(&daemon_);
	}
}

TEST(a_failed_connect_says_in_which_state_the_instance_is)
{
	struct kvt_options options;
	struct kvt_client *client, *last;
	struct kvt_error error;

	kvt_test_daemon_begin(&daemon_, "max_sessions = 1\n");
	options = options_of(0, NULL, NULL);
	kvt_test_equal(kvt_client_connect(&client, &options, &error), 0);
	kvt_test_equal(kvt_client_error(client)->attach_state, KVT_ATTACH_OK);
	kvt_test_check(kvt_client_connect(&last, &options, &error) < 0); /* no address */
	kvt_test_equal(error.attach_state, KVT_ATTACH_REFUSED);
	options.flags = 1u << 31;
	kvt_test_equal(kvt_client_connect(&last, &options, &error), -EPROTO);
	kvt_test_equal(error.attach_state, KVT_ATTACH_REFUSED);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
	options.flags = 0;
	options.connect_wait_ns = -1;
	kvt_test_check(kvt_client_connect(&last, &options, &error) < 0);
	kvt_test_equal(error.attach_state, KVT_ATTACH_NO_SOCKET);
}
