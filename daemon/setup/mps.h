/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_MPS_H
#define KVT_DAEMON_SETUP_MPS_H

/**
 * @file mps.h
 * NVIDIA's Multi-Process Service (MPS): whether it runs, and whether it still has a dead client.
 *
 * Under MPS a client's GPU work may outlive its process. The control program
 * (nvidia-cuda-mps-control) names the servers and their clients, and terminate_client ends a
 * client's work. It is run as a child, which may hang: nothing here waits for it.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/setup/pool_backend.h"

#define KVT_MPS_SERVERS 16 /* more are not understood */

/** The command that the control program was started for. */
enum kvt_mps_step {
	KVT_MPS_NONE = 0, /* no ask is under way */
	KVT_MPS_SERVER_LIST,
	KVT_MPS_CLIENT_LIST,
	KVT_MPS_TERMINATE,
};

enum kvt_mps_word {
	KVT_MPS_GONE,   /* no server has the client: its work on the device has ended */
	KVT_MPS_ASKED,  /* no answer yet */
	KVT_MPS_SILENT, /* no answer that proves anything: `why` */
};

struct kvt_mps_control {
	const char *program; /* found in PATH; "": not asked */
	const char *proc;    /* "/proc" */
	char why[256]; /* fit for a line of the log */

	/* The ask under way. */
	enum kvt_mps_step step;
	uint32_t session;  /* it is asked for */
	uint64_t until_ns; /* no longer */
	pid_t child;       /* 0: none */
	pid_t killed;      /* a child whose end is not seen yet; 0: none */
	int answer;        /* output of the child; -1: none */
	uint32_t n_servers, server;  /* filled of `servers`, and the next to ask */
	uint32_t n_listed, client;   /* filled of `listed`, and the next to end */
	int32_t servers[KVT_MPS_SERVERS];
	int32_t listed[KVT_POOL_WRITER_PIDS]; /* the writer's that the last server has */
	bool refused; /* one of them could not be ended */
};

#define KVT_MPS_CONTROL_INIT                                                                      \
	((struct kvt_mps_control){ .program = "", .proc = "/proc", .answer = -1 })

/** True if a control daemon's pipe or a process of MPS is seen. Only its clients know the pipe's
 * directory, and another PID namespace hides processes. */
bool kvt_mps_found(void);
/** Ask whether a server of MPS has a process of the writer, and end its work where one has. All of
 * them have exited. One session at a time; the others wait. Never blocks. Unless they are gone, ask
 * again at *ret_again_ns. */
enum kvt_mps_word kvt_mps_ask(struct kvt_mps_control *mps, const struct kvt_pool_writer *writer,
			      uint64_t now_ns, uint64_t *ret_again_ns);
/** End the ask under way. */
void kvt_mps_stop(struct kvt_mps_control *mps);

#endif
