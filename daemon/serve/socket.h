/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_SOCKET_H
#define KVT_SERVE_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvt_daemon;

/** The listening socket and its name. Changed by start.c, then by socket.c. */
struct kvt_listener {
	int fd;      /* socket, -1: none; timers.c closes it to drain */
	bool passed; /* bound by the service manager or a predecessor */
	bool made;   /* bound by this daemon */
	char path[108];
	uint64_t file[2]; /* device and inode behind `path` when bound; 0: none */
	gid_t gid;        /* group of the file; -1: the daemon's */
	pid_t holder;     /* process that listens at `path` already; 0 = unknown */
	int name_fd;          /* inotify of the file, -1 = none */
	bool name_watched;    /* name_fd watches the file */
	bool name_lost;       /* the socket has no name, and the log says so */
	uint64_t name_due_ns; /* time of the next look at the name */
};

/** Check, without making anything, that a socket could be bound here. `in_folder`: also that the
 * folder is there. Errors and `why` as of kvt_socket_bind(). */
int kvt_socket_check(const char *path, bool in_folder, char *why);
/** Bind and listen at socket_path. -EADDRINUSE with `why`: a process listens there. */
int kvt_socket_bind(struct kvt_daemon *daemon, char *why);
/** Take listen_fd, which the service manager or a predecessor bound. */
void kvt_socket_passed(struct kvt_daemon *daemon);
/** Begin to watch the name. If it is gone, bind another socket. */
void kvt_socket_watch(struct kvt_daemon *daemon);
/** The file has changed. */
void kvt_socket_event(struct kvt_daemon *daemon);
/** Make the name again if it is gone or leads elsewhere. Returns when to look again. */
uint64_t kvt_socket_look(struct kvt_daemon *daemon);
/** Look if it is time. Returns when the next look is due. */
uint64_t kvt_socket_due(struct kvt_daemon *daemon);
/** Remove the name if we made it, and it leads to our socket. */
void kvt_socket_unlink(struct kvt_daemon *daemon);

#endif
