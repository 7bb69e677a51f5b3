/* SPDX-License-Identifier: Apache-2.0 */
/* Several slabs, and groups: processes of one engine that share one session. Ranks are child
 * processes that take orders over a pipe; pages must return only after the last process.
 *
 * Inputs: orders to ranks, and signals. Invariant: no page is free while a process that could write
 * it lives. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvtrunk_wire.h"
#include "libclient/state.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/lib/raw.h"

enum { SLOT = 3, PAGE_SIZE = 16, N_PAGES = 4096 };

/* Orders to a rank over its pipe, one word each. It answers with a word. */
enum order {
	ORDER_RAISE = 1, /* then the value */
	ORDER_WRITE,     /* then the page: fills it in its slab with its rank */
	ORDER_CHECK,     /* answers with the error of kvt_group_check() */
	ORDER_WAIT_END,  /* until its control socket is readable; answers like ORDER_CHECK */
	ORDER_FORK,      /* answers with the pid of a child that inherits all and does nothing */
	ORDER_SUSPEND,   /* answers with the result */
	ORDER_RESUME,
	ORDER_CLOSE,     /* answers with the result, and ends */
};

struct member {
	struct kvt_test_child child;
	bool in_namespace; /* a PID namespace of its own */
	const struct kvt_test_daemon *daemon;
	struct kvt_group_token token;
	uint32_t rank;
};

static const struct kvt_group_token early = { { 3, 4 } };

struct world {
	struct kvt_test_daemon daemon;
	struct kvt_client *leader;
	struct kvt_group_token token;
	uint32_t session, space;
	struct member members[2];
};

static int join_within(const struct kvt_test_daemon *daemon, const struct kvt_group_token *token,
		       uint32_t rank, int64_t wait_ns, struct kvt_client **ret_client,
		       struct kvt_error *error)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon->socket;
	options.label = "member";
	options.flags = KVT_ANY_GEOMETRY;
	options.group = token;
	options.rank = rank;
	options.connect_wait_ns = wait_ns;
	return kvt_client_connect(ret_client, &options, error);
}

static int join(const struct kvt_test_daemon *daemon, const struct kvt_group_token *token,
		uint32_t rank, struct kvt_client **ret_client, struct kvt_error *error)
{
	return join_within(daemon, token, rank, 0, ret_client, error);
}

/* ---- a member */

static uint64_t wait_end(struct kvt_client *client)
{
	struct pollfd look = { .fd = kvt_client_control_fd(client), .events = POLLIN };

	int rc = 0;

	while (rc == 0) { /* a successor ends nothing */
		kvt_test_equal(poll(&look, 1, -1), 1);
		rc = kvt_group_check(client);
	}
	return (uint64_t)-rc;
}

static uint64_t leave_a_child(void)
{
	pid_t child = fork();

	kvt_test_check(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		for (;;)
			pause();
	}
	return (uint64_t)child;
}

/* Continue as process 1 of a PID namespace that ends with this process. False: not allowed. */
static bool enter_namespace(int pipe)
{
	pid_t child;
	int status;

	if (unshare(CLONE_NEWPID) != 0) {
		kvt_test_send(pipe, 0);
		return false;
	}
	child = fork();
	kvt_test_check(child >= 0);
	if (child != 0) {
		close(pipe);
		kvt_test_equal(waitpid(child, &status, 0), child);
		_exit(status != 0);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kvt_test_equal(getpid(), 1);
	return true;
}

static void member_main(int pipe, void *context)
{
	const struct member *self = context;
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_pool pool;
	uint64_t order, word;

	if (self->in_namespace && !enter_namespace(pipe))
		return;

	kvt_test_equal(join(self->daemon, &self->token, self->rank, &client, &error), 0);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(pool.slab, self->rank);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	while (kvt_test_receive(pipe, &order)) {
		switch ((enum order)order) {
		case ORDER_RAISE:
			word = kvt_test_word(pipe);
			kvt_test_send(pipe, (uint64_t)-kvt_fence_raise(client, SLOT, word));
			break;
		case ORDER_WRITE:
			word = kvt_test_word(pipe);
			memset(kvt_page_address(&pool, (uint32_t)word), (int)self->rank,
			       kvt_test_page_bytes(&pool));
			kvt_test_send(pipe, 0);
			break;
		case ORDER_CHECK:
			kvt_test_send(pipe, (uint64_t)-kvt_group_check(client));
			break;
		case ORDER_WAIT_END:
			kvt_test_send(pipe, wait_end(client));
			break;
		case ORDER_FORK:
			kvt_test_send(pipe, leave_a_child());
			break;
		case ORDER_SUSPEND:
			kvt_test_send(pipe, (uint64_t)-kvt_client_suspend(client));
			break;
		case ORDER_RESUME:
			kvt_test_send(pipe, (uint64_t)-kvt_client_resume(client));
			break;
		case ORDER_CLOSE:
			kvt_test_send(pipe, (uint64_t)-kvt_client_close(client, KVT_IDLE));
			return;
		}
	}
}

static uint64_t tell(const struct member *member, uint64_t order)
{
	return kvt_test_ask(&member->child, order);
}

static uint64_t tell_with(const struct member *member, uint64_t order, uint64_t word)
{
	kvt_test_send(member->child.pipe, order);
	return tell(member, word);
}

static void start_member(struct world *world, uint32_t rank)
{
	struct member *member = &world->members[rank - 1];

	*member = (struct member){ .daemon = &world->daemon, .token = world->token, .rank = rank };
	kvt_test_child_start(&member->child, member_main, member);
	kvt_test_expect(member->child.pipe, world->session);
}

/* ---- the world */

static const char config[] = "n_layers = 2\nn_kv_heads = 2\nhead_dim = 8\nkv_type = fp16\n"
			     "kv_order = page\npage_bytes = 0\nn_slabs = 3\nmax_members = 6\n";

static void open_group(struct world *world)
{
	world->leader = kvt_test_connect(&world->daemon);
	world->session = kvt_client_info(world->leader)->session;
	world->space = kvt_test_namespace(world->leader, "groups");
	kvt_test_equal(kvt_group_open(world->leader, 3, NULL, &world->token), 0);
}

static void begin(struct world *world)
{
	kvt_test_daemon_begin_logged(&world->daemon, config, false);
	open_group(world);
	start_member(world, 1);
	start_member(world, 2);
}

static void end(struct world *world)
{
	kvt_test_daemon_end(&world->daemon);
}

static void finish_member(struct member *member)
{
	tell(member, ORDER_CLOSE);
	kvt_test_child_finish(&member->child);
}

/* All is in order: rank 0 closes, then the members do. */
static void close_and_end(struct world *world)
{
	kvt_test_equal(kvt_client_close(world->leader, KVT_IDLE), 0);
	finish_member(&world->members[0]);
	finish_member(&world->members[1]);
	end(world);
}

/* ---- slabs */

TEST(the_same_page_is_another_memory_in_each_slab)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *writer, *reader;
	struct kvt_pool_view view;
	struct kvt_pool pool;
	uint32_t page;

	kvt_test_daemon_begin(&daemon, config);
	writer = kvt_test_connect(&daemon);
	reader = kvt_test_connect(&daemon);
	kvt_test_equal(kvt_client_info(writer)->n_slabs, 3);
	kvt_test_equal(kvt_client_info(writer)->page_bytes, 2 * 2 * 2 * 8 * 2 * PAGE_SIZE);
	kvt_test_equal(kvt_alloc(writer, 1, &page), 0);
	for (uint32_t i = 0; i < 3; i++) {
		kvt_test_equal(kvt_pool_map_slab(writer, i, &pool), 0);
		kvt_test_equal(pool.slab, i);
		kvt_test_equal(kvt_pool_view(writer, &pool, 1, &view), 0);
		memset((char *)view.v + page * view.page_stride_bytes, 'a' + (int)i, 2);
	}
	for (uint32_t i = 0; i < 3; i++) {
		kvt_test_equal(kvt_pool_map_slab(reader, i, &pool), 0);
		kvt_test_equal(kvt_pool_view(reader, &pool, 1, &view), 0);
		kvt_test_equal(*((char *)view.v + page * view.page_stride_bytes + 1),
			       'a' + (int)i);
	}
	kvt_test_equal(kvt_pool_map_slab(reader, 3, &pool), -EINVAL);
	kvt_test_equal(kvt_pool_view(reader, &pool, 2, &view), -EINVAL);
	kvt_client_close(writer, KVT_IDLE);
	kvt_client_close(reader, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* Each rank suspends its own mapping. What they computed is there when all have resumed. */
TEST(ranks_suspend_one_by_one_and_resume_to_the_same_pages)
{
	uint32_t keys[PAGE_SIZE], page;
	struct kvt_result result;
	struct kvt_pool_view view;
	struct kvt_pool pool;
	struct world world;
	struct kvt_seq *seq;

	begin(&world);
	for (uint32_t i = 0; i < PAGE_SIZE; i++)
		keys[i] = i;
	kvt_test_equal(kvt_pool_map(world.leader, &pool), 0);
	kvt_test_equal(kvt_pool_view(world.leader, &pool, 0, &view), 0);
	kvt_test_equal(kvt_seq_begin(world.leader, world.space, keys, PAGE_SIZE, 0, 0, &seq), 0);
	page = kvt_seq_pages(seq, NULL)[0];
	kvt_test_equal(tell_with(&world.members[0], ORDER_WRITE, page), 0);
	/* A member does not know of leases: rank 0 does, and goes first. */
	kvt_test_equal(kvt_client_suspend(world.leader), -EBUSY);
	kvt_test_equal(kvt_seq_end(seq, PAGE_SIZE, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_client_suspend(world.leader), 0);
	for (int i = 0; i < 2; i++)
		kvt_test_equal(tell(&world.members[i], ORDER_SUSPEND), 0);
	kvt_test_equal(tell(&world.members[0], ORDER_CHECK), 0);
	for (int i = 0; i < 2; i++)
		kvt_test_equal(tell(&world.members[i], ORDER_RESUME), 0);
	kvt_test_equal(kvt_client_resume(world.leader), 0);
	kvt_test_equal(kvt_match(world.leader, world.space, keys, PAGE_SIZE, KVT_F_LOCK, &result),
		       0);
	kvt_test_equal(result.pages[0], page);
	kvt_result_release(world.leader, &result);
	kvt_test_equal(kvt_pool_map_slab(world.leader, 1, &pool), 0);
	kvt_test_equal(kvt_pool_view(world.leader, &pool, 0, &view), 0);
	kvt_test_equal(*((unsigned char *)view.k + page * view.page_stride_bytes), 1);
	kvt_test_equal(kvt_unlock(world.leader, result.lease, KVT_IDLE), 0);
	/* One ends while the others sleep: they are told. */
	kvt_test_equal(kvt_client_suspend(world.leader), 0);
	kvt_test_equal(tell(&world.members[1], ORDER_SUSPEND), 0);
	kvt_test_child_kill(&world.members[0].child, SIGKILL);
	kvt_test_session_ended(&world.daemon, world.session);
	kvt_test_equal(tell(&world.members[1], ORDER_RESUME), ECONNRESET);
	kvt_test_equal(kvt_client_resume(world.leader), -ECONNRESET);
	kvt_client_close(world.leader, KVT_IDLE);
	finish_member(&world.members[1]);
	end(&world);
}

/* ---- fences */

static uint32_t visible(struct world *world, const uint32_t *keys, uint32_t n)
{
	struct kvt_client *other = kvt_test_connect(&world->daemon);
	uint32_t matched = kvt_test_matched(other, kvt_test_namespace(other, "groups"), keys, n);

	kvt_client_close(other, KVT_IDLE);
	return matched;
}

/* A COMMIT behind word 3 takes effect when rank 0, 1 and 2 have raised theirs, in any order. */
TEST(a_fence_waits_for_the_words_of_all_ranks)
{
	static uint32_t keys[PAGE_SIZE * 2];
	struct kvt_request request = { .op = KVT_OP_COMMIT, .fence = { SLOT, 7 },
				       .arg = PAGE_SIZE };
	struct kvt_result result;
	struct world world;
	struct kvt_seq *seq;
	uint32_t n;

	begin(&world);
	for (uint32_t i = 0; i < PAGE_SIZE * 2; i++)
		keys[i] = 1000 + i;
	kvt_test_equal(kvt_seq_begin(world.leader, world.space, keys, PAGE_SIZE * 2, 0, 0, &seq),
		       0);
	for (uint32_t rank = 1; rank <= 2; rank++)
		tell_with(&world.members[rank - 1], ORDER_WRITE, kvt_seq_pages(seq, &n)[0]);
	request.lease = seq->lease;
	kvt_test_equal(kvt_submit(world.leader, &request), 0);
	kvt_test_equal(kvt_fence_raise(world.leader, SLOT, 7), 0);
	kvt_test_equal(tell_with(&world.members[1], ORDER_RAISE, 8), 0);
	kvt_test_equal(tell_with(&world.members[0], ORDER_RAISE, 6), 0);
	kvt_test_equal(visible(&world, keys, PAGE_SIZE * 2), 0);
	kvt_test_equal(kvt_reap(world.leader, &result, 0, 1), 0);
	kvt_test_equal(tell_with(&world.members[0], ORDER_RAISE, 7), 0);
	kvt_test_equal(kvt_reap(world.leader, &result, 1, 1), 1);
	kvt_test_equal(result.error, 0);
	kvt_test_equal(result.sealed, 1);
	kvt_result_release(world.leader, &result);
	kvt_test_equal(visible(&world, keys, PAGE_SIZE * 2), PAGE_SIZE);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	/* In order: rank 0 closes, members see it and leave the group. */
	kvt_test_equal(kvt_client_close(world.leader, (struct kvt_fence){ SLOT, 7 }), 0);
	for (int i = 0; i < 2; i++) {
		if (i == 0) /* one sees it on its socket, the other finds the mark */
			kvt_test_equal(tell(&world.members[i], ORDER_WAIT_END), ECONNRESET);
		kvt_test_equal(tell_with(&world.members[i], ORDER_RAISE, 9), ECONNRESET);
		finish_member(&world.members[i]);
	}
	kvt_test_equal(kvt_test_settled(&world.daemon).quarantined_pages, 0);
	end(&world);
}

/* Words of a late member begin with rank 0's, so reached fences stay reached. */
TEST(a_late_member_does_not_take_back_a_fence)
{
	struct world world;
	uint32_t pages[2];

	kvt_test_daemon_begin(&world.daemon, config);
	open_group(&world);
	kvt_test_equal(kvt_fence_raise(world.leader, SLOT, 5), 0);
	start_member(&world, 2);
	kvt_test_equal(kvt_alloc(world.leader, 2, pages), 0);
	kvt_test_equal(kvt_free(world.leader, pages, 2, (struct kvt_fence){ SLOT, 5 }), 0);
	kvt_test_equal(kvt_alloc(world.leader, 1, pages), 0);
	kvt_test_equal(kvt_fence_raise(world.leader, SLOT, 6), 0);
	kvt_client_set_timeout(world.leader, 20000000);
	kvt_test_equal(kvt_free(world.leader, pages, 1, (struct kvt_fence){ SLOT, 6 }),
		       -ETIMEDOUT);
	kvt_test_equal(tell_with(&world.members[1], ORDER_RAISE, 6), 0);
	kvt_client_set_timeout(world.leader, 0);
	kvt_test_equal(kvt_client_close(world.leader, KVT_IDLE), 0);
	finish_member(&world.members[1]);
	end(&world);
}

/* Members whose work ends when rank 0 says so: its word decides. */
TEST(rank_0_alone_raises_if_the_others_are_at_the_end)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { SLOT, 7 }, .n_pages = 2 };
	struct kvt_result result;
	struct world world;
	uint32_t pages[2];

	begin(&world);
	for (int i = 0; i < 2; i++)
		kvt_test_equal(tell_with(&world.members[i], ORDER_RAISE, UINT64_MAX), 0);
	kvt_test_equal(kvt_alloc(world.leader, 2, pages), 0);
	request.pages = pages;
	kvt_test_equal(kvt_submit(world.leader, &request), 0);
	kvt_test_equal(kvt_test_settled(&world.daemon).private_pages, 2);
	kvt_test_equal(kvt_fence_raise(world.leader, SLOT, 7), 0);
	kvt_test_equal(kvt_reap(world.leader, &result, 1, 1), 1);
	kvt_test_equal(result.error, 0);
	kvt_result_release(world.leader, &result);
	kvt_test_equal(kvt_test_settled(&world.daemon).private_pages, 0);
	close_and_end(&world);
}

/* ---- ends */

static void hold_pages(struct world *world)
{
	uint32_t pages[5];

	kvt_test_equal(kvt_alloc(world->leader, 5, pages), 0);
	kvt_test_equal(kvt_test_settled(&world->daemon).private_pages, 5);
}

static uint64_t quarantined(struct world *world)
{
	return kvt_test_settled(&world->daemon).quarantined_pages;
}

/* One rank is killed: the others learn which; pages wait for the last process. */
TEST(the_group_is_over_when_any_rank_is_and_its_pages_free_when_all_are)
{
	struct pollfd look = { .events = POLLIN };
	struct world world;

	begin(&world);
	hold_pages(&world);
	kvt_test_child_kill(&world.members[0].child, SIGKILL);
	look.fd = kvt_client_control_fd(world.leader);
	kvt_test_equal(poll(&look, 1, -1), 1);
	kvt_test_equal(kvt_group_check(world.leader), -ECONNRESET);
	kvt_test_check(strstr(kvt_client_error(world.leader)->text, "rank 1") != NULL);
	kvt_test_equal(tell(&world.members[1], ORDER_WAIT_END), ECONNRESET);
	kvt_test_session_ended(&world.daemon, world.session);
	kvt_test_equal(quarantined(&world), 5);
	/* Rank 2 dies, too: rank 0 still lives and could write. */
	kvt_test_child_kill(&world.members[1].child, SIGKILL);
	kvt_test_equal(quarantined(&world), 5);
	kvt_client_abandon(world.leader); /* its socket is gone, its process is this one */
	kvt_test_equal(quarantined(&world), 5);
	end(&world);
}

/* Rank 0 is killed. A member that lives, even stopped, keeps its pages from being reused. */
struct leader {
	const struct kvt_test_daemon *daemon;
	bool leaves_a_child; /* that holds its socket: */
	pid_t child;
};

static void leader_main(int pipe, void *context)
{
	const struct leader *self = context;
	struct kvt_client *client = kvt_test_connect(self->daemon);
	struct kvt_group_token token;
	uint32_t pages[5];
	uint64_t word;

	kvt_test_equal(kvt_group_open(client, 3, NULL, &token), 0);
	kvt_test_equal(kvt_alloc(client, 5, pages), 0);
	word = self->leaves_a_child ? leave_a_child() : 0;
	kvt_test_send(pipe, word);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_send(pipe, token.words[0]);
	kvt_test_send(pipe, token.words[1]);
	kvt_test_receive(pipe, &word);
}

static void begin_with_a_leader_apart(struct world *world, struct kvt_test_child *leader,
				      struct leader *context)
{
	kvt_test_daemon_begin(&world->daemon, config);
	context->daemon = &world->daemon;
	kvt_test_child_start(leader, leader_main, context);
	context->child = (pid_t)kvt_test_word(leader->pipe);
	world->session = (uint32_t)kvt_test_word(leader->pipe);
	world->token.words[0] = kvt_test_word(leader->pipe);
	world->token.words[1] = kvt_test_word(leader->pipe);
}

TEST(a_killed_rank_0_ends_its_group_and_a_stopped_member_keeps_the_pages)
{
	struct kvt_counters counters;
	struct kvt_test_child leader;
	struct leader context = { .leaves_a_child = false };
	struct world world;

	begin_with_a_leader_apart(&world, &leader, &context);
	start_member(&world, 1);
	start_member(&world, 2);
	kvt_test_freeze(world.members[1].child.pid);
	kvt_test_child_kill(&leader, SIGKILL);
	kvt_test_equal(tell(&world.members[0], ORDER_WAIT_END), ECONNRESET);
	finish_member(&world.members[0]);
	kvt_test_session_ended(&world.daemon, world.session);
	kvt_test_equal(quarantined(&world), 5);
	kill(world.members[1].child.pid, SIGCONT);
	kvt_test_equal(tell(&world.members[1], ORDER_CHECK), ECONNRESET);
	kvt_test_equal(quarantined(&world), 5);
	kvt_test_child_kill(&world.members[1].child, SIGKILL);
	/* The last process has ended: the daemon learns it soon. */
	kvt_test_until(&world.daemon, counters, counters.free_pages == N_PAGES - 1);
	end(&world);
}

/* A member's child holds all device mappings of its parent, and the control socket. */
TEST(a_child_of_a_dead_member_keeps_the_pages)
{
	struct kvt_counters counters;
	struct kvt_test_child leader;
	struct leader context = { .leaves_a_child = false };
	struct world world;
	pid_t child;

	begin_with_a_leader_apart(&world, &leader, &context);
	start_member(&world, 1);
	child = (pid_t)tell(&world.members[0], ORDER_FORK);
	start_member(&world, 2);
	kvt_test_child_kill(&world.members[0].child, SIGKILL);
	/* Its exit suffices to end the group. */
	kvt_test_equal(tell(&world.members[1], ORDER_WAIT_END), ECONNRESET);
	kvt_test_child_kill(&world.members[1].child, SIGKILL);
	kvt_test_session_ended(&world.daemon, world.session);
	kvt_test_child_kill(&leader, SIGKILL);
	kvt_test_equal(quarantined(&world), 5);
	kvt_test_equal(kill(child, SIGKILL), 0);
	kvt_test_until(&world.daemon, counters, counters.free_pages == N_PAGES - 1);
	end(&world);
}

/* Either sign of rank 0's end suffices: hang-up of a live process, or exit of one whose child holds
 * the socket. Its pages wait for both. */
TEST(members_are_told_at_the_first_sign)
{
	for (int i = 0; i < 2; i++) {
		struct leader context = { .leaves_a_child = i == 0 };
		struct kvt_counters counters;
		struct kvt_test_child leader;
		struct world world;

		if (i == 0) {
			begin_with_a_leader_apart(&world, &leader, &context);
			start_member(&world, 1);
			kvt_test_child_kill(&leader, SIGKILL);
		} else {
			begin(&world);
			hold_pages(&world);
			kvt_client_abandon(world.leader);
			kvt_test_equal(tell(&world.members[1], ORDER_WAIT_END), ECONNRESET);
			finish_member(&world.members[1]);
		}
		kvt_test_equal(tell(&world.members[0], ORDER_WAIT_END), ECONNRESET);
		kvt_test_session_ended(&world.daemon, world.session);
		kvt_test_child_kill(&world.members[0].child, SIGKILL);
		kvt_test_equal(quarantined(&world), 5);
		if (i == 0) {
			kvt_test_equal(kill(context.child, SIGKILL), 0);
			kvt_test_until(&world.daemon, counters,
				       counters.free_pages == N_PAGES - 1);
		}
		end(&world);
	}
}

/* An operator's fence. It leaves nothing of the group in the daemon, although one of its processes
 * lives. */
TEST(an_operator_ends_the_quarantine_of_a_group)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE };
	struct kvt_client *observer;
	struct kvt_test_child leader;
	struct leader context = { .leaves_a_child = false };
	struct world world;
	uint32_t before;

	begin_with_a_leader_apart(&world, &leader, &context);
	before = kvt_test_daemon_descriptors(&world.daemon);
	start_member(&world, 1);
	start_member(&world, 2);
	kvt_test_child_kill(&world.members[1].child, SIGKILL);
	kvt_test_child_kill(&leader, SIGKILL);
	kvt_test_session_ended(&world.daemon, world.session);
	kvt_test_equal(quarantined(&world), 5);
	request.argument = world.session;
	observer = kvt_test_observe(&world.daemon);
	kvt_test_check(kvt_admin(observer, &request, NULL, 0, NULL, 0) >= 0);
	kvt_client_close(observer, KVT_IDLE);
	kvt_test_equal(quarantined(&world), 0);
	world.leader = kvt_test_connect(&world.daemon); /* has as many descriptors as the other */
	while (kvt_test_daemon_descriptors(&world.daemon) > before)
		kvt_test_settled(&world.daemon);
	kvt_test_equal(tell(&world.members[0], ORDER_CHECK), ECONNRESET);
	finish_member(&world.members[0]);
	kvt_client_close(world.leader, KVT_IDLE);
	end(&world);
}

/* Containers of one engine may each have a PID namespace. */
TEST(a_member_may_be_in_another_pid_namespace)
{
	struct member *member;
	struct world world;
	uint64_t word;

	kvt_test_daemon_begin(&world.daemon, config);
	open_group(&world);
	member = &world.members[0];
	*member = (struct member){ .daemon = &world.daemon, .token = world.token, .rank = 1,
				   .in_namespace = true };
	kvt_test_child_start(&member->child, member_main, member);
	word = kvt_test_word(member->child.pipe);
	if (word) {
		kvt_test_equal(word, world.session);
		hold_pages(&world);
		kvt_test_child_kill(&member->child, SIGKILL); /* and with it its waiting parent */
		kvt_test_session_ended(&world.daemon, world.session);
		kvt_test_equal(kvt_group_check(world.leader), -ECONNRESET);
		kvt_test_check(strstr(kvt_client_error(world.leader)->text, "rank 1") != NULL);
		kvt_test_equal(quarantined(&world), 5);
		kvt_client_abandon(world.leader);
	} else {
		kvt_test_child_finish(&member->child);
		kvt_client_close(world.leader, KVT_IDLE);
	}
	end(&world);
	if (!word)
		kvt_skip("needs a PID namespace, which this process cannot make");
}

/* ---- the daemon's end */

static void upgrade(struct kvt_test_daemon *daemon)
{
	kvt_test_equal(kill(daemon->pid, SIGUSR2), 0);
	kvt_test_check(kvt_test_daemon_await(daemon, "READY=1"));
}

/* A FREE waits for all words. A successor takes over; the words are raised after that. */
static void continues(void (*succeed)(struct kvt_test_daemon *))
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { SLOT, 7 }, .n_pages = 2 };
	struct kvt_result result;
	struct world world;
	uint32_t pages[5];

	kvt_test_daemon_begin_supervised(&world.daemon, config);
	open_group(&world);
	start_member(&world, 1);
	start_member(&world, 2);
	kvt_test_equal(kvt_alloc(world.leader, 5, pages), 0);
	request.pages = pages;
	kvt_test_equal(kvt_submit(world.leader, &request), 0);
	kvt_test_equal(tell_with(&world.members[0], ORDER_RAISE, 7), 0);
	succeed(&world.daemon);
	do /* it sees the hang-up, then connects again */
		kvt_test_equal(tell(&world.members[0], ORDER_CHECK), 0);
	while (!kvt_test_daemon_said(&world.daemon, "event=session_resumed session=1 rank=1"));
	kvt_test_equal(kvt_fence_raise(world.leader, SLOT, 7), 0);
	kvt_test_equal(kvt_test_settled(&world.daemon).private_pages, 5);
	kvt_test_equal(kvt_reap(world.leader, &result, 0, 1), 0);
	kvt_test_equal(tell_with(&world.members[1], ORDER_RAISE, 7), 0);
	kvt_test_equal(kvt_reap(world.leader, &result, 1, 1), 1);
	kvt_test_equal(result.error, 0);
	kvt_result_release(world.leader, &result);
	kvt_test_equal(kvt_test_settled(&world.daemon).private_pages, 3);
	/* The successor watches the processes, too. */
	kvt_test_child_kill(&world.members[1].child, SIGKILL);
	kvt_test_equal(tell(&world.members[0], ORDER_WAIT_END), ECONNRESET);
	succeed(&world.daemon);
	kvt_test_equal(quarantined(&world), 3);
	finish_member(&world.members[0]);
	kvt_test_equal(quarantined(&world), 3); /* rank 0, this process, lives */
	kvt_client_abandon(world.leader);
	end(&world);
}

TEST(a_group_outlives_a_killed_daemon)
{
	continues(kvt_test_daemon_succeed);
}

TEST(a_group_outlives_an_upgrade)
{
	continues(upgrade);
}

/* ---- refusals */

static void refused(const struct kvt_test_daemon *daemon, const struct kvt_group_token *token,
		    uint32_t rank, int code, const char *words)
{
	struct kvt_client *client;
	struct kvt_error error;

	kvt_test_equal(join(daemon, token, rank, &client, &error), code);
	if (!strstr(error.text, words))
		kvt_test_fail("'%s' is not in: %s", words, error.text);
}

/* A client of another library, whose rank came without its token. */
static void refused_raw(const struct kvt_test_daemon *daemon)
{
	struct kvt_message_hello hello = kvt_test_hello(KVT_ANY_GEOMETRY);
	int fd = kvt_test_dial(daemon), result;

	hello.rank = 1;
	kvt_test_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	kvt_test_check(kvt_test_answer(fd, &result) != 0);
	kvt_test_equal(result, -EINVAL);
	close(fd);
}

TEST(a_refused_join_names_its_cause)
{
	const struct kvt_group_token zero = { { 0, 0 } };
	struct kvt_group_token wrong, again;
	struct kvt_client *other, *more;
	struct kvt_request request = { .op = KVT_OP_STATS };
	struct kvt_error error;
	struct world world;

	begin(&world);
	wrong = world.token;
	wrong.words[1] ^= 1ull << 63;
	refused(&world.daemon, &wrong, 1, -ESTALE, "no group has this token");
	refused(&world.daemon, &zero, 1, -EINVAL, "token of zeroes");
	refused(&world.daemon, NULL, 1, -EINVAL, "no group token");
	refused_raw(&world.daemon);
	refused(&world.daemon, &world.token, 0, -ERANGE, "rank 0 opened the group");
	refused(&world.daemon, &world.token, 3, -ERANGE, "rank 3 is not in this group");
	refused(&world.daemon, &world.token, 2, -EEXIST, "has already joined");
	kvt_test_equal(kvt_group_open(world.leader, 3, NULL, &again), 0);
	kvt_test_equal(memcmp(&again, &world.token, sizeof(again)), 0);
	kvt_test_equal(kvt_group_open(world.leader, 4, NULL, &again), -EALREADY);
	other = kvt_test_connect(&world.daemon);
	kvt_test_equal(kvt_group_open(other, 1, NULL, &again), -EINVAL);
	kvt_test_equal(kvt_group_open(other, 3, &zero, &again), -EINVAL);
	kvt_test_equal(kvt_group_open(other, KVT_MAX_RANKS + 1, NULL, &again), -EINVAL);
	/* Three of six are taken. */
	kvt_test_equal(kvt_group_open(other, 4, NULL, &again), -ENOSPC);
	kvt_test_check(strstr(kvt_client_error(other)->text, "max_members=6") != NULL);
	kvt_test_equal(kvt_group_open(other, 3, &world.token, &again), -EEXIST);
	kvt_test_check(strstr(kvt_client_error(other)->text, "another group has this") != NULL);
	kvt_test_equal(kvt_group_open(other, 3, NULL, &again), 0);
	kvt_test_equal(join(&world.daemon, &again, 2, &more, &error), 0);
	kvt_test_equal(kvt_submit(more, &request), -ENOTCONN);
	kvt_test_equal(kvt_group_open(more, 2, NULL, &again), -ENOTCONN);
	/* Places are free again when a group has ended, and its token is invalid. */
	kvt_test_equal(kvt_client_close(other, KVT_IDLE), 0);
	kvt_test_equal(kvt_group_check(more), -ECONNRESET);
	kvt_test_check(strstr(kvt_client_error(more)->text, "rank 0 closed it") != NULL);
	refused(&world.daemon, &again, 1, -ESTALE, "no group has this token");
	kvt_client_close(more, KVT_IDLE);
	other = kvt_test_connect(&world.daemon);
	kvt_test_settled(&world.daemon);
	kvt_test_equal(kvt_group_open(other, 3, NULL, &again), 0);
	kvt_client_close(other, KVT_IDLE);
	kvt_test_equal(tell(&world.members[0], ORDER_CHECK), 0); /* the first is unchanged */
	close_and_end(&world);
}

/* A token that the ranks know beforehand. It is free again when its session has ended. */
TEST(rank_0_may_choose_the_token)
{
	const struct kvt_group_token chosen = { { 0, 7 } }, wrong = { { 7, 0 } };
	struct kvt_group_token token;
	struct kvt_client *rank;
	struct kvt_error error;
	struct world world;

	begin(&world);
	refused(&world.daemon, &chosen, 1, -ESTALE, "no group has this token");
	for (int i = 0; i < 2; i++) {
		struct kvt_client *leader = kvt_test_connect(&world.daemon);

		kvt_test_equal(kvt_group_open(leader, 2, &chosen, &token), 0);
		kvt_test_equal(memcmp(&token, &chosen, sizeof(token)), 0);
		kvt_test_equal(kvt_group_open(leader, 2, &chosen, &token), 0);
		kvt_test_equal(kvt_group_open(leader, 2, NULL, &token), 0);
		kvt_test_equal(memcmp(&token, &chosen, sizeof(token)), 0);
		kvt_test_equal(kvt_group_open(leader, 2, &wrong, &token), -EALREADY);
		kvt_test_check(strstr(kvt_client_error(leader)->text, "another token") != NULL);
		kvt_test_equal(join(&world.daemon, &chosen, 1, &rank, &error), 0);
		kvt_test_equal(kvt_client_info(rank)->session, kvt_client_info(leader)->session);
		kvt_test_equal(kvt_client_close(leader, KVT_IDLE), 0);
		kvt_client_close(rank, KVT_IDLE);
	}
	close_and_end(&world);
}

static void join_early(int pipe, void *context)
{
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_test_daemon *daemon = context;

	kvt_test_equal(join_within(daemon, &early, 1, 60000000000, &client, &error), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_client_close(client, KVT_IDLE);
}

TEST(a_rank_may_wait_for_rank_0)
{
	struct kvt_group_token token;
	struct kvt_test_child rank;
	struct kvt_client *leader;
	struct kvt_error error;
	struct world world;

	kvt_test_daemon_begin(&world.daemon, config);
	kvt_test_equal(join_within(&world.daemon, &early, 1, 1, &leader, &error), -ESTALE);
	kvt_test_child_start(&rank, join_early, &world.daemon);
	while (kvt_test_status(&world.daemon).refused_connections < 5)
		;
	leader = kvt_test_connect(&world.daemon);
	kvt_test_equal(kvt_group_open(leader, 2, &early, &token), 0);
	kvt_test_expect(rank.pipe, kvt_client_info(leader)->session);
	kvt_test_child_finish(&rank);
	kvt_client_close(leader, KVT_IDLE);
	kvt_test_daemon_end(&world.daemon);
}

TEST(clients_shows_members)
{
	char command[256], line[512];
	struct world world;
	int found = 0;
	FILE *out;

	begin(&world);
	snprintf(command, sizeof(command), "%s/kvtctl --socket %s clients", kvt_test_build(),
		 world.daemon.socket);
	out = popen(command, "re");
	kvt_test_check(out != NULL);
	while (fgets(line, sizeof(line), out))
		found += strstr(line, "rank 1 of 3") || strstr(line, "rank 2 of 3");
	kvt_test_equal(pclose(out), 0);
	kvt_test_equal(found, 2);
	close_and_end(&world);
}
