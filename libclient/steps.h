/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STEPS_H
#define KVT_STEPS_H

#include <stdbool.h>

struct kvt_client;

/** Protocol steps at which a test build (-DKVT_TEST_STEPS) calls kvt_client_step_hook, in the order
 * in which one call passes them. X(enumerator, name). The last group is one step for each
 * operation: "after-begin" is when its answer has been taken and the caller not yet been told. */
#define KVT_CLIENT_STEPS(X)                                                                       \
	X(KVT_STEP_CONNECTED, "connected")             /* socket open, HELLO not sent */         \
	X(KVT_STEP_HELLO_SENT, "hello-sent")           /* no answer read yet */                  \
	X(KVT_STEP_WELCOMED, "welcomed")               /* session open, nothing mapped yet */    \
	X(KVT_STEP_ATTACHED, "attached")               /* everything mapped */                   \
	X(KVT_STEP_NAMESPACE_SENT, "namespace-sent")                                             \
	X(KVT_STEP_KEYS_WRITTEN, "keys-written")       /* keys in the area, no entry */          \
	X(KVT_STEP_ENTRY_PUT, "entry-put")             /* entry written, tail not published */   \
	X(KVT_STEP_TAIL_PUBLISHED, "tail-published")   /* visible, doorbell not rung */          \
	X(KVT_STEP_SUBMITTED, "submitted")             /* doorbell rung if it was needed */      \
	X(KVT_STEP_BEFORE_SLEEP, "before-sleep")       /* cq_need_wakeup set, about to sleep */  \
	X(KVT_STEP_COMPLETION_SEEN, "completion-seen") /* in the CQ, head not moved */           \
	X(KVT_STEP_COMPLETION_TAKEN, "completion-taken")                                         \
	X(KVT_STEP_FENCE_RAISED, "fence-raised")       /* word stored, daemon not woken */       \
	X(KVT_STEP_GIVE_BACK, "give-back")             /* a late answer is about to be undone */ \
	X(KVT_STEP_CLOSED, "closed")                   /* CLOSE answered, socket still open */   \
	X(KVT_STEP_AFTER_NOP, "after-nop")                                                       \
	X(KVT_STEP_AFTER_MATCH, "after-match")                                                   \
	X(KVT_STEP_AFTER_LOCK, "after-lock")                                                     \
	X(KVT_STEP_AFTER_UNLOCK, "after-unlock")                                                 \
	X(KVT_STEP_AFTER_ALLOC, "after-alloc")                                                   \
	X(KVT_STEP_AFTER_FREE, "after-free")                                                     \
	X(KVT_STEP_AFTER_INSERT, "after-insert")                                                 \
	X(KVT_STEP_AFTER_BEGIN, "after-begin")                                                   \
	X(KVT_STEP_AFTER_COMMIT, "after-commit")                                                 \
	X(KVT_STEP_AFTER_EXTEND, "after-extend")                                                 \
	X(KVT_STEP_AFTER_END, "after-end")                                                       \
	X(KVT_STEP_AFTER_REMOVE, "after-remove")                                                 \
	X(KVT_STEP_AFTER_PAGE, "after-page")                                                     \
	X(KVT_STEP_AFTER_EVICT, "after-evict")                                                   \
	X(KVT_STEP_AFTER_RESET, "after-reset")                                                   \
	X(KVT_STEP_AFTER_STATS, "after-stats")                                                   \
	X(KVT_STEP_AFTER_AUDIT, "after-audit")                                                   \
	X(KVT_STEP_AFTER_CLOSE, "after-close")

#define KVT_STEP_ENUM(e, n) e,
enum kvt_client_step_id { KVT_CLIENT_STEPS(KVT_STEP_ENUM) KVT_STEP_COUNT };
#undef KVT_STEP_ENUM

/** Name of a step for `kill@STEP`; NULL beyond the last. */
const char *kvt_client_step_name(unsigned int step);
/** Number of a step; -EINVAL: no such name. */
int kvt_client_step_parse(const char *name);

/** Called at each step in a test build; never elsewhere. `client` is NULL before it exists. */
typedef void kvt_client_step_fn(struct kvt_client *client, unsigned int step, void *context);

/** Test builds: the one hook of this process. Returns false in a library built without steps. */
bool kvt_client_step_hook(kvt_client_step_fn *hook, void *context);

#ifdef KVT_TEST_STEPS
void kvt_client_step(struct kvt_client *client, unsigned int step);
#else
static inline void kvt_client_step(struct kvt_client *client, unsigned int step)
{
	(void)client;
	(void)step;
}
#endif

#endif
