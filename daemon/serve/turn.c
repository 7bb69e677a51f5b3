/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file turn.c
 * The serving loop: rings, fences, events, background work, then spinning or sleeping.
 *
 * A turn takes a short run of entries of each session, and publishes their answers at its end. Work
 * beside the rings has its part of the turn's time, so neither starves. An entry is
 * deferred only if it has a pending place and a CQ slot. The loop sleeps only after a last look
 * with sq_need_wakeup set. Called by main.c; the core calls kvt_daemon_complete().
 */

#include "kvtrunk_wire_segment.h"
#include "daemon/serve/turn.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/core/records.h"
#include "daemon/log/operations.h"
#include "daemon/serve/accept.h"
#include "daemon/serve/admin.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/control.h"
#include "daemon/serve/member.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/session.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/state.h"
#include "daemon/serve/timers.h"
#include "shm/assert.h"
#include "shm/bucket.h"

#define unlikely(x) __builtin_expect(!!(x), 0)

#define EVENTS_AT_ONCE 8          /* rings first: an event may cost microseconds */
/* Events and background work each get a quarter of the time since the turn began. So pages of dead
 * workers come back as fast under load, where a turn of many sessions takes milliseconds. */
#define OTHERS_PART 4
#define WORK_STEPS 64             /* of background work between two looks at the rings */
#define HOT_AT_LEAST 8            /* sessions polled in every turn, busy or not */
#define RUN_ENTRIES 8             /* of one session in one turn */
#define RUN_KEYS 1024             /* an entry with more is a run by itself */
#define COLD_AFTER_TURNS 4096
#define COLD_PER_TURN 2
#define LATE_PART 16              /* polled waits end late by at most length / LATE_PART */
#define POLL_MOST_NS 20000000ull
#define COMPACT_ASLEEP_NS 50000   /* sleep no longer while nodes may wait for compaction */

/* In a turn, half-open connections get CONNECT_US, observers and sessions one message each. Then
 * the kind pauses, three times as long as it took, but at most PAUSE_MOST_US: the message after an
 * audit does not wait for seconds. So each kind takes a quarter of the thread's time, and a flood
 * of one kind delays no other. */
#define CONNECT_US 100
#define PAUSE_PER_COST 3
#define PAUSE_MOST_US 2000

/* ---- one entry */

/* Free CQ slots that no deferred operation will need. Negative: a broken index. */
static int cq_room(struct kvt_session *session)
{
	struct kvt_ring_end *ring = &session->ring;
	int space = kvt_ring_cq_space(ring);

	if (unlikely(space >= 0 && (uint32_t)space <= session->deferred)) {
		/* The cached index may be old. Pairs with the client's release of cq_head. */
		ring->cq_head = kvt_load_acquire(&ring->header->cq_head);
		if (ring->cq_tail - ring->cq_head > ring->cq_mask + 1)
			return -EPROTO;
		space = (int)(ring->cq_mask + 1 - (ring->cq_tail - ring->cq_head));
	}
	return space < 0 ? space : space - (int)session->deferred;
}

static void publish(struct kvt_daemon *daemon, struct kvt_session *session)
{
	uint64_t before;

	if (!unlikely(kvt_ring_cq_publish(&session->ring)))
		return;
	before = kvt_cycles();
	kvt_session_ring_bell(daemon, session);
	daemon->turn.woken_cycles += kvt_cycles() - before;
}

/* Spin for the session's next entry, if that may pay. */
static void expect_entry(struct kvt_daemon *daemon, const struct kvt_session *session)
{
	kvt_spin_expect(&daemon->spin, kvt_ring_client_here(&session->ring), daemon->turn.stamp);
}

/* Tell members that rank 0 closed the session, before rank 0 is answered: its pages are free, and
 * members must not touch them any more. */
static void tell_closed(struct kvt_daemon *daemon, struct kvt_session *session)
{
	if (!session->connections) /* no hang-up will follow */
		daemon->sessions.look_due = daemon->sessions.sweep_due = true;
	kvt_session_tell(daemon, session->members->next, -ESHUTDOWN,
			 "the group is over: rank 0 closed it");
}

void kvt_daemon_complete(void *context, uint32_t index, const struct kvt_cqe *cqe)
{
	struct kvt_daemon *daemon = context;
	struct kvt_session *session = &daemon->sessions.slots[index];

	if (!session->open)
		return;
	KVT_ASSERT(session->deferred > 0 && daemon->sessions.n_deferred >= session->deferred);
	daemon->sessions.n_common -= session->deferred > daemon->sessions.own_places;
	session->deferred--;
	daemon->sessions.n_deferred--;
	session->waiting_since_ns = daemon->clock.real_ns;
	if (unlikely(kvt_core_session(daemon->core, index)->signs & KVT_SIGN_CLOSED))
		tell_closed(daemon, session);
	kvt_ring_cq_put(&session->ring, cqe);
	publish(daemon, session);
	expect_entry(daemon, session);
}

/* True if an operation waits for a fence. Waiting BEGINs do not count: they need no polling, and
 * CLOSE cancels them instead of waiting. */
static bool waits_for_fence(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	return session->deferred &&
	       session->deferred > kvt_core_session(daemon->core, session->index)->n_waiters;
}

/* True if an entry may be deferred and so needs a pending place. Does not read the fence word
 * (TOCTOU: the client could lower it before the core reads it). */
static bool may_defer(const struct kvt_daemon *daemon, const struct kvt_session *session,
		      const struct kvt_sqe *sqe)
{
	return kvt_op_takes(sqe->op) & KVT_TAKES_FENCE &&
	       (waits_for_fence(daemon, session) || sqe->fence_slot < KVT_FENCE_WORDS);
}

/* True if the session can defer no further operation. Each has `own_places` of its own, so fences
 * that are never reached cannot stop other sessions; the common rest is shared. */
static bool no_place(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	const struct kvt_sessions *all = &daemon->sessions;

	if (!kvt_core_can_defer(daemon->core))
		return true;
	return session->deferred >= all->own_places &&
	       (all->n_common >= all->common_places ||
		session->deferred >= all->own_places + all->common_places / 4);
}

static bool no_place_to_wait(const struct kvt_daemon *daemon, const struct kvt_session *session,
			     const struct kvt_sqe *sqe)
{
	return may_defer(daemon, session, sqe) && no_place(daemon, session);
}

/* Waiting needs a pending place and a CQ slot; NO_WAIT needs two CQ slots. */
static bool may_wait(const struct kvt_daemon *daemon, struct kvt_session *session,
		     const struct kvt_sqe *sqe)
{
	return !no_place(daemon, session) &&
	       (!(sqe->flags & KVT_F_NO_WAIT) || cq_room(session) > 1);
}

static void take_place(struct kvt_daemon *daemon, struct kvt_session *session)
{
	if (!session->deferred)
		session->waiting_since_ns = daemon->clock.real_ns;
	session->deferred++;
	KVT_ASSERT(session->deferred <= session->ring.cq_mask + 1); /* each has a CQ slot */
	daemon->sessions.n_deferred++;
	daemon->sessions.n_common += session->deferred > daemon->sessions.own_places;
}

/* Bring the next timer forward to the deadline of a BEGIN that waits. */
static void watch_deadline(struct kvt_daemon *daemon)
{
	uint64_t due = kvt_core_next_expiry_ns(daemon->core);

	if (!daemon->clock.is_test && due < daemon->timers.next_ns)
		daemon->timers.next_ns = due;
}

static void account(struct kvt_daemon *daemon, const struct kvt_sqe *sqe, uint64_t cycles)
{
	struct kvt_daemon_stats *stats = &daemon->stats;
	uint32_t op = sqe->op < KVT_OP_KINDS ? sqe->op : 0;
	uint64_t units =
		(uint64_t)((unsigned __int128)cycles * daemon->clock.units_per_cycle >> 32);

	stats->op_count[op]++;
	stats->op_cycles[op] += cycles;
	stats->op_histogram[op][kvt_log2_bucket(units, KVT_HISTOGRAM_BUCKETS)]++;
	if (op == KVT_OP_BEGIN) {
		uint32_t nodes = kvt_core_effort(daemon->core)->path_nodes;

		stats->path_nodes[stats->n_path_nodes++ % KVT_PATH_SAMPLES] =
			(uint8_t)(nodes < 255 ? nodes : 255);
	}
}

/* Run one entry. The last of a run publishes the run's answers, before it is accounted for. Returns
 * the cycle counter after it. */
static uint64_t run_entry(struct kvt_daemon *daemon, struct kvt_session *session,
			  const struct kvt_sqe *sqe, bool last, uint64_t before)
{
	struct kvt_cqe cqe;
	uint64_t after;
	bool answered;

	if (unlikely(sqe->flags & (KVT_F_WAIT | KVT_F_NO_WAIT)))
		kvt_core_let_wait(daemon->core, may_wait(daemon, session, sqe));
	if (unlikely(sqe->op == KVT_OP_CLOSE))
		kvt_session_note_end(daemon, session, "closed");
	if (unlikely(sqe->op == KVT_OP_AUDIT))
		kvt_core_let_audit(daemon->core, kvt_admin_may_audit(daemon));
	answered = kvt_core_execute(daemon->core, session->index, sqe, daemon->clock.now_ns, &cqe);
	/* After the effect: a crash between the two would lose the entry. Before the answer: the
	 * client may count on the slot. */
	kvt_ring_sq_advance(&session->ring);
	if (answered) {
		KVT_ASSERT(session->ring.cq_tail - session->ring.cq_head <= session->ring.cq_mask);
		if (unlikely(sqe->op == KVT_OP_CLOSE && cqe.result))
			session->end.how = NULL; /* CLOSE failed */
		else if (unlikely(sqe->op == KVT_OP_CLOSE))
			tell_closed(daemon, session);
		else if (unlikely(sqe->op == KVT_OP_SUSPECT && !cqe.result))
			kvt_session_log_suspect(daemon, session, sqe->arg, cqe.suspect.owner);
		else if (unlikely(sqe->op == KVT_OP_REMOVE && sqe->flags & KVT_F_DAMAGED &&
				  !cqe.result && cqe.remove.state))
			kvt_session_log_damage(daemon, session, cqe.remove.lock_ref);
		kvt_ring_cq_put(&session->ring, &cqe);
		/* A notice will follow. */
		if (unlikely(cqe.reason == KVT_REASON_ANNOUNCED && sqe->ttl_ms)) {
			take_place(daemon, session);
			watch_deadline(daemon);
		}
	} else {
		take_place(daemon, session);
		if (sqe->op == KVT_OP_BEGIN)
			watch_deadline(daemon);
	}
	if (last)
		publish(daemon, session);
	after = kvt_cycles();
	account(daemon, sqe, after - before);
	return after;
}

/* Take the next entry of a run, if it can be run now. */
static inline bool take_entry(struct kvt_daemon *daemon, struct kvt_session *session, bool first,
			      struct kvt_sqe *ret_sqe)
{
	if (unlikely(cq_room(session) <= 0))
		return false;
	if (unlikely(session->holding)) {
		*ret_sqe = session->held;
		if (no_place_to_wait(daemon, session, ret_sqe))
			return false;
		session->holding = false;
		return true;
	}
	kvt_ring_sq_peek(&session->ring, ret_sqe);
	if (ret_sqe->n_keys > RUN_KEYS && !first)
		return false;
	if (unlikely(no_place_to_wait(daemon, session, ret_sqe))) {
		session->held = *ret_sqe;
		session->holding = true;
		return false;
	}
	return true;
}

/* Run some entries of a session. Returns the number run. */
static inline uint32_t serve(struct kvt_daemon *daemon, struct kvt_session *session)
{
	int n = kvt_ring_sq_pending(&session->ring), done = 0;
	uint64_t start, now, woken = daemon->turn.woken_cycles;
	struct kvt_sqe sqe;

	if (n == 0)
		return 0;
	if (unlikely(n < 0 || cq_room(session) < 0)) {
		kvt_session_kill(daemon, session, -EPROTO,
				 "a ring index is impossible: the session is over");
		return 0;
	}
	n = n < RUN_ENTRIES ? n : RUN_ENTRIES;
	start = now = kvt_cycles();
	while (done < n && take_entry(daemon, session, done == 0, &sqe)) {
		now = run_entry(daemon, session, &sqe, done + 1 == n, now);
		done++;
		if (sqe.n_keys > RUN_KEYS || sqe.op == KVT_OP_CLOSE ||
		    now - start > daemon->shares.lead)
			break;
	}
	if (done == 0)
		return 0;
	if (done < n)
		publish(daemon, session);
	expect_entry(daemon, session);
	if (unlikely(session->ring.pace_us || session->pace.due))
		kvt_spin_pace(&daemon->spin, &session->pace, session->ring.pace_us, start);
	kvt_share_ran(&daemon->shares, &session->share, now - start,
		      daemon->turn.woken_cycles - woken);
	return (uint32_t)done;
}

/* serve() out of line, for cold callers. */
static __attribute__((noinline)) uint32_t serve_rarely(struct kvt_daemon *daemon,
						       struct kvt_session *session)
{
	return serve(daemon, session);
}

static inline struct kvt_session *served_at(const struct kvt_daemon *daemon, uint32_t at)
{
	return &daemon->sessions.slots[daemon->sessions.served[at]];
}

/* Sessions that were idle for long are cold. A turn polls only a few of them, so hundreds of idle
 * clients do not slow a busy one. `served` holds the hot ones first. */
static void swap_served(struct kvt_daemon *daemon, uint32_t a, uint32_t b)
{
	uint32_t other = daemon->sessions.served[a];

	KVT_ASSERT(a < daemon->sessions.n_served && b < daemon->sessions.n_served);
	daemon->sessions.served[a] = daemon->sessions.served[b];
	daemon->sessions.served[b] = other;
}

static void warm(struct kvt_daemon *daemon, uint32_t at)
{
	KVT_ASSERT(at >= daemon->sessions.n_hot && at < daemon->sessions.n_served);
	served_at(daemon, at)->worked_turn = daemon->stats.turns;
	swap_served(daemon, at, daemon->sessions.n_hot++);
}

static void cool_one(struct kvt_daemon *daemon)
{
	uint32_t at = daemon->turn.cool_next < daemon->sessions.n_hot ? daemon->turn.cool_next : 0;
	const struct kvt_session *session = served_at(daemon, at);

	daemon->turn.cool_next = at + 1;
	if (daemon->stats.turns - session->worked_turn < COLD_AFTER_TURNS || session->deferred ||
	    session->holding)
		return;
	swap_served(daemon, at, --daemon->sessions.n_hot);
}

static uint32_t look_at_cold(struct kvt_daemon *daemon)
{
	uint32_t work = 0;

	for (int i = 0; i < COLD_PER_TURN &&
	     daemon->sessions.n_hot < daemon->sessions.n_served; i++) {
		struct kvt_session *session;

		if (daemon->turn.cold_next < daemon->sessions.n_hot ||
		    daemon->turn.cold_next >= daemon->sessions.n_served)
			daemon->turn.cold_next = daemon->sessions.n_hot;
		session = served_at(daemon, daemon->turn.cold_next);
		if (kvt_ring_sq_pending(&session->ring) != 0) {
			warm(daemon, daemon->turn.cold_next);
			work += serve_rarely(daemon, session);
		}
		daemon->turn.cold_next++;
	}
	return work;
}

static inline uint32_t serve_hot(struct kvt_daemon *daemon)
{
	const struct kvt_shares *shares = &daemon->shares;
	uint32_t work = 0;

	for (uint32_t i = 0; i < daemon->sessions.n_hot; i++) {
		struct kvt_session *session = served_at(daemon, i);
		struct kvt_account *account = session->share.account;
		uint32_t done;

		if (unlikely(kvt_share_waits(&session->share)))
			continue;
		done = serve(daemon, session);
		if (done)
			session->worked_turn = daemon->stats.turns;
		/* Over its share: the rest of the class waits for the next turn. */
		if (unlikely(shares->both && account->spent > shares->floor + shares->lead))
			account->limit = 0;
		work += done;
	}
	return work;
}

static inline uint32_t serve_all(struct kvt_daemon *daemon)
{
	uint32_t work = serve_hot(daemon);

	if (unlikely(daemon->shares.both))
		kvt_shares_settle(&daemon->shares, kvt_cycles());
	else
		kvt_shares_turn(&daemon->shares);
	if (unlikely(daemon->sessions.n_hot > HOT_AT_LEAST))
		cool_one(daemon);
	if (unlikely(daemon->sessions.n_hot < daemon->sessions.n_served))
		work += look_at_cold(daemon);
	return work;
}

/* ---- fences, events, background */

static uint32_t poll_fences(struct kvt_daemon *daemon)
{
	uint64_t before = kvt_cycles(), now;
	uint32_t work = 0;

	for (uint32_t i = 0; i < daemon->sessions.n_hot; i++) { /* a waiting session stays hot */
		struct kvt_session *session = served_at(daemon, i);

		if (!session->deferred || kvt_share_waits(&session->share))
			continue;
		work += kvt_core_poll(daemon->core, session->index, daemon->clock.now_ns);
		now = kvt_cycles();
		kvt_share_spend(&daemon->shares, &session->share, now - before);
		before = now;
	}
	work += kvt_core_wake(daemon->core, daemon->clock.now_ns);
	return work;
}

static void handle_event(struct kvt_daemon *daemon, const struct kvt_loop_event *event)
{
	uint32_t slot = event->tag >> 32 & 0xffffffu, generation = (uint32_t)event->tag;
	struct kvt_connection *connection;
	struct kvt_session *session;
	struct kvt_member *member;

	switch ((enum kvt_tag_kind)(event->tag >> 56)) {
	case KVT_TAG_NONE:
		break;
	case KVT_TAG_ACCEPT:
		if (generation == daemon->accept.generation)
			kvt_accept_event(daemon);
		break;
	case KVT_TAG_NAME:
		kvt_socket_event(daemon);
		break;
	case KVT_TAG_SIGNAL:
		kvt_signal_handle(daemon);
		break;
	case KVT_TAG_PULSE:
		kvt_timers_pulse(daemon);
		break;
	case KVT_TAG_CONNECTION:
		KVT_ASSERT(slot < daemon->connections.n_slots);
		connection = &daemon->connections.slots[slot];
		if (connection->generation == generation && connection->fd >= 0)
			kvt_control_event(daemon, connection, event->result);
		break;
	case KVT_TAG_DOORBELL:
		KVT_ASSERT(slot > 0 && slot <= daemon->core_config.max_sessions);
		session = &daemon->sessions.slots[slot];
		if (session->generation == generation)
			kvt_session_doorbell_event(daemon, session, event->result);
		break;
	case KVT_TAG_PROCESS:
		KVT_ASSERT(slot > 0 && slot <= kvt_core_members(&daemon->core_config));
		member = &daemon->members[slot];
		if (daemon->sessions.slots[member->session].generation == generation &&
		    member->pidfd_armed)
			kvt_session_lost(daemon, member, true);
		break;
	}
}

/* The end of the time that work starting now gets in a turn that began at `stamp`. */
static inline uint64_t until(uint64_t stamp)
{
	uint64_t now = kvt_cycles();

	return now + (now - stamp) / OTHERS_PART;
}

static uint32_t handle_events(struct kvt_daemon *daemon, uint64_t stamp)
{
	struct kvt_loop_event events[EVENTS_AT_ONCE];
	uint64_t end = until(stamp);
	unsigned int n, work = 0;

	kvt_daemon_clock(daemon);
	do {
		n = kvt_loop_reap(&daemon->loop, events, EVENTS_AT_ONCE);
		for (unsigned int i = 0; i < n; i++)
			handle_event(daemon, &events[i]);
		work += n;
	} while (n == EVENTS_AT_ONCE && kvt_cycles() < end);
	kvt_loop_flush(&daemon->loop);
	return work;
}

/* Accept connections and take their first messages, for a bounded time. */
static void connect_some(struct kvt_daemon *daemon)
{
	const struct kvt_connection_queue *queue =
		&daemon->connections.readable[KVT_CONNECTION_HALF_OPEN];
	uint64_t end = kvt_cycles() + CONNECT_US * daemon->clock.cycles_per_us;

	do {
		if (daemon->accept.due)
			kvt_accept_some(daemon);
		if (!TAILQ_EMPTY(queue))
			kvt_control_take(daemon, TAILQ_FIRST(queue));
	} while ((daemon->accept.due || !TAILQ_EMPTY(queue)) && kvt_cycles() < end);
}

/* True if connections of this kind have a message, or are to be accepted. */
static bool has_control(const struct kvt_daemon *daemon, enum kvt_connection_state kind)
{
	return !TAILQ_EMPTY(&daemon->connections.readable[kind]) ||
	       (kind == KVT_CONNECTION_HALF_OPEN && daemon->accept.due);
}

/* Serve connections of this kind, if it does not pause. Returns 1 if it did. */
static uint32_t take_control(struct kvt_daemon *daemon, enum kvt_connection_state kind)
{
	uint64_t start = kvt_cycles(), pause, most = PAUSE_MOST_US * daemon->clock.cycles_per_us;

	if (!has_control(daemon, kind) || (int64_t)(start - daemon->turn.control_after[kind]) < 0)
		return 0;
	kvt_daemon_clock(daemon);
	if (kind == KVT_CONNECTION_HALF_OPEN)
		connect_some(daemon);
	else
		kvt_control_take(daemon, TAILQ_FIRST(&daemon->connections.readable[kind]));
	kvt_loop_flush(&daemon->loop);
	pause = (kvt_cycles() - start) * PAUSE_PER_COST;
	daemon->turn.control_after[kind] = kvt_cycles() + (pause < most ? pause : most);
	return 1;
}

static __attribute__((noinline)) uint32_t take_all_control(struct kvt_daemon *daemon)
{
	return take_control(daemon, KVT_CONNECTION_HALF_OPEN) +
	       take_control(daemon, KVT_CONNECTION_OBSERVER) +
	       take_control(daemon, KVT_CONNECTION_SESSION);
}

static inline bool has_background(const struct kvt_daemon *daemon)
{
	return daemon->sessions.sweep_due || daemon->counters->detached_pending != 0 ||
	       (daemon->sessions.n_dying && kvt_core_unsettled(daemon->core));
}

/* Release a bounded part of ended sessions and detached subtrees. */
static uint32_t background(struct kvt_daemon *daemon, uint64_t stamp)
{
	uint32_t work = 0, done = 1;
	uint64_t end = until(stamp);

	while (done && kvt_core_unsettled(daemon->core)) {
		done = kvt_core_work(daemon->core, WORK_STEPS, false,
				     daemon->clock.now_ns);
		work += done;
		if (kvt_cycles() >= end)
			break;
	}
	if (daemon->sessions.sweep_due || work) {
		daemon->sessions.sweep_due = false;
		kvt_sessions_sweep(daemon);
	}
	if (daemon->waiters)
		kvt_control_answer(daemon);
	return work + daemon->sessions.sweep_due;
}

/* ---- nothing to do */

static void set_need_wakeup(struct kvt_daemon *daemon, uint32_t value)
{
	for (uint32_t i = 0; i < daemon->sessions.n_served; i++) {
		struct kvt_session *session = served_at(daemon, i);

		kvt_store_relaxed(&session->ring.header->sq_need_wakeup, value);
	}
}

/* Poll the doorbells that rang. */
static void arm_doorbells(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; i < daemon->sessions.n_served; i++) {
		struct kvt_session *session = served_at(daemon, i);

		if (session->doorbell_armed)
			continue;
		kvt_loop_poll(&daemon->loop, session->doorbell, POLLIN,
			      kvt_tag(KVT_TAG_DOORBELL, session->index, session->generation));
		session->doorbell_armed = true;
	}
}

/* Time to sleep while polling for something since `since_ns`: proportional to the time waited, so
 * that it ends late by at most 1 / LATE_PART. */
static uint64_t polled_wait_ns(const struct kvt_daemon *daemon, uint64_t since_ns)
{
	uint64_t wait = (daemon->clock.real_ns - since_ns) / LATE_PART;
	uint64_t least = (uint64_t)daemon->config.fence_poll_us * 1000;

	if (wait > POLL_MOST_NS)
		wait = POLL_MOST_NS;
	return wait > least ? wait : least;
}

/* True if each raise of a fence word of the session rings its doorbell. */
static bool raises_ring(const struct kvt_session *session)
{
	for (const struct kvt_member *member = session->members; member; member = member->next) {
		const struct kvt_segment_header *header = member->segment.base;

		if (!kvt_load_relaxed(&header->raises_ring))
			return false;
	}
	return true;
}

/* Look once more for work, after need_wakeup is visible. False: there is some. *ret_timeout_ns: the
 * longest sleep, for waits that no doorbell ends. */
static bool last_look(struct kvt_daemon *daemon, uint64_t *ret_timeout_ns)
{
	uint64_t timeout = UINT64_MAX;
	bool stalled = false;

	for (uint32_t i = 0; i < daemon->sessions.n_served; i++) {
		struct kvt_session *session = served_at(daemon, i);
		int n = session->holding ? 1 : kvt_ring_sq_pending(&session->ring);

		if (n < 0 || (n && cq_room(session) != 0 &&
			      !(session->holding &&
				no_place_to_wait(daemon, session, &session->held))))
			return false; /* an entry, or a broken index */
		stalled |= n != 0;
		if (waits_for_fence(daemon, session)) {
			uint64_t wait = raises_ring(session) ?
				POLL_MOST_NS : polled_wait_ns(daemon, session->waiting_since_ns);

			if (kvt_core_poll(daemon->core, session->index, daemon->clock.now_ns))
				return false;
			timeout = wait < timeout ? wait : timeout;
		}
	}
	if (kvt_core_wake(daemon->core, daemon->clock.now_ns))
		return false;
	if (!stalled) {
		daemon->turn.stalled_since_ns = 0;
	} else {
		uint64_t wait;

		if (!daemon->turn.stalled_since_ns)
			daemon->turn.stalled_since_ns = daemon->clock.real_ns;
		wait = polled_wait_ns(daemon, daemon->turn.stalled_since_ns);
		timeout = wait < timeout ? wait : timeout;
	}
	*ret_timeout_ns = timeout;
	return true;
}

/* Time until the first pause ends of a kind of connections that has a message. */
static uint64_t pause_left_ns(const struct kvt_daemon *daemon)
{
	uint64_t now = kvt_cycles(), least = UINT64_MAX;

	for (uint32_t kind = KVT_CONNECTION_HALF_OPEN; kind <= KVT_CONNECTION_SESSION; kind++) {
		int64_t left = (int64_t)(daemon->turn.control_after[kind] - now);

		if (has_control(daemon, kind) && least > (uint64_t)(left > 0 ? left : 0))
			least = left > 0 ? (uint64_t)left : 0;
	}
	return least == UINT64_MAX ? least : least * 1000 / daemon->clock.cycles_per_us;
}

static void sleep_now(struct kvt_daemon *daemon)
{
	uint64_t timeout, timer, pause, before = daemon->clock.real_ns;

	if (unlikely(daemon->oplog_dirty)) { /* write while idle */
		daemon->oplog_dirty = false;
		if (!daemon->oplog_error)
			kvt_oplog_flush(daemon->oplog);
	}
	arm_doorbells(daemon);
	set_need_wakeup(daemon, 1);
	/* Pairs with the client's full fence between publishing and its look at sq_need_wakeup. */
	kvt_fence_full();
	if (last_look(daemon, &timeout) && !kvt_loop_ready(&daemon->loop, before)) {
		if (daemon->turn.compact_due && timeout > COMPACT_ASLEEP_NS)
			timeout = COMPACT_ASLEEP_NS;
		timer = daemon->timers.next_ns > before ? daemon->timers.next_ns - before : 0;
		pause = pause_left_ns(daemon);
		timeout = timer < timeout ? timer : timeout;
		daemon->stats.sleeps++;
		kvt_loop_sleep(&daemon->loop, pause < timeout ? pause : timeout);
		kvt_daemon_clock(daemon);
		if (kvt_loop_ready(&daemon->loop, daemon->clock.real_ns))
			kvt_spin_slept(&daemon->spin, (daemon->clock.real_ns - before) *
							      daemon->clock.cycles_per_us / 1000);
	}
	set_need_wakeup(daemon, 0);
	/* Leave idle_since: a sleep that ended without an event is followed by a sleep. */
}

/* Compact, spin or sleep after a turn without work. */
static void idle(struct kvt_daemon *daemon, uint64_t stamp)
{
	uint64_t idle_cycles;

	if (!daemon->turn.idle_since)
		daemon->turn.idle_since = stamp;
	idle_cycles = stamp - daemon->turn.idle_since;
	if (daemon->turn.compact_due && idle_cycles >= daemon->turn.compact_after_cycles) {
		if (!kvt_core_work(daemon->core, WORK_STEPS, true,
				   daemon->clock.now_ns))
			daemon->turn.compact_due = false;
		return;
	}
	if (kvt_spin_once(&daemon->spin, stamp)) {
		daemon->stats.spins++;
		return;
	}
	kvt_daemon_clock(daemon);
	if (daemon->clock.real_ns >= daemon->timers.next_ns)
		kvt_timers_run(daemon);
	else
		sleep_now(daemon);
}

void kvt_daemon_run(struct kvt_daemon *daemon)
{
	kvt_spin_shorten_slices();
	kvt_daemon_clock(daemon);
	kvt_timers_run(daemon);
	while (!daemon->over) {
		uint64_t stamp = kvt_cycles();
		uint32_t work, served;

		kvt_spin_turn(&daemon->spin, stamp);
		daemon->turn.stamp = stamp;
		if (unlikely(stamp - daemon->clock.stamp >= daemon->clock.interval)) {
			kvt_daemon_clock(daemon);
			if (daemon->clock.real_ns >= daemon->timers.next_ns)
				kvt_timers_run(daemon);
		}
		daemon->stats.turns++;
		/* First: who asks after work was done should find it. */
		work = unlikely(daemon->sessions.n_deferred) ? poll_fences(daemon) : 0;
		served = serve_all(daemon);
		if (served) /* it may have left chains of nodes */
			daemon->turn.compact_due = true;
		work += served;
		if (unlikely(kvt_loop_ready(&daemon->loop, daemon->clock.real_ns)))
			work += handle_events(daemon, stamp);
		if (unlikely(daemon->accept.due || daemon->connections.n_readable))
			work += take_all_control(daemon);
		if (unlikely(has_background(daemon)))
			work += background(daemon, stamp);
		if (unlikely(daemon->draining && daemon->counters->live_leases == 0))
			daemon->over = true;
		if (unlikely(daemon->loop.failure.call))
			kvt_host_ends(daemon, daemon->loop.failure.call,
				      -daemon->loop.failure.error);
		if (work)
			daemon->turn.idle_since = 0;
		else if (!daemon->over)
			idle(daemon, stamp);
	}
}
