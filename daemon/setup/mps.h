/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_MPS_H
#define KVT_DAEMON_SETUP_MPS_H

/**
 * @file mps.h
 * NVIDIA's Multi-Process Service (MPS): whether it runs, and whether it still has a dead client,
 * whose GPU work may outlive its process there.
 *
 * The second question goes to MPS's control program and to /proc, which may take any time. So a
 * process of its own asks (mps_gone.h), and nothing here waits for it.
 */

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvt_pool_writer;

#define KVT_MPS_LOOK_NS 5000000ull /* between looks at the process that asks */
#define KVT_MPS_SEARCHED 64u       /* processes at a time: about a millisecond */

/** True if a control daemon's pipe or a process of MPS is seen. Only its clients know the pipe's
 * directory, and another PID namespace hides processes. Takes 6 ms for a thousand processes. */
bool kvt_mps_found(void);
/** The same in parts of KVT_MPS_SEARCHED processes. 1: it is seen; 0: it is not; -EAGAIN: call
 * again. `proc`: "/proc". *search is NULL before, and after an answer. */
int kvt_mps_search(const char *proc, DIR **search);
/** Give up a search, if one is under way. */
void kvt_mps_search_end(DIR **search);

/** Verdicts on a client. The asking process exits with them, and with them only if it asked. */
enum kvt_mps_verdict {
	KVT_MPS_GONE = 10,    /* no server has it: its work on the device has ended */
	KVT_MPS_THERE = 11,   /* it may be there: ask again */
	KVT_MPS_UNKNOWN = 12, /* the answers prove nothing */
};

/** The question under way, one at a time. KVT_MPS_QUESTION_INIT before use. */
struct kvt_mps_question {
	const char *asker; /* program that asks: this one */
	pid_t process;     /* that asks; 0: none */
	int answer;        /* its output: why; -1: none */
	uint32_t session;  /* about which, or the last one was */
	uint64_t given_up_ns;
	char why[256]; /* the last answer's reason, fit for the log */
};

#define KVT_MPS_QUESTION_INIT                                                                     \
	((struct kvt_mps_question){ .asker = "/proc/self/exe", .answer = -1 })

/** Ask by the control program `control` for the writer's processes, which have all exited, and have
 * their work ended. Does not wait: KVT_MPS_THERE while no answer is there. Unless they are gone,
 * ask again at *ret_again_ns. */
enum kvt_mps_verdict kvt_mps_ask(struct kvt_mps_question *question, const char *control,
				 const struct kvt_pool_writer *writer, uint64_t now_ns,
				 uint64_t *ret_again_ns);
/** Why a session's processes are not known to be gone, by what is known now. */
const char *kvt_mps_why(const struct kvt_mps_question *question, uint32_t session);
/** End the question about a session; UINT32_MAX: whichever it is about. */
void kvt_mps_forget(struct kvt_mps_question *question, uint32_t session);

#endif
