/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file socket.c
 * The listening socket, and the name that leads to it.
 *
 * A name can vanish while the daemon serves: a cleaner of old files, an `rm`. inotify tells of it,
 * at no cost while idle; without inotify the daemon looks each second. As a bound socket takes no
 * second name, another socket is bound, and the queue of the old one is accepted first. A socket
 * that the service manager passed has a name that only the manager can make. The file's device and
 * inode tell our socket from another's. Called by start.c and timers.c.
 */

#include "daemon/serve/socket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/serve/accept.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/state.h"
#include "daemon/serve/stored.h"

#define LOOK_NS 1000000000ull
#define OTHERS_NS 10000000000ull /* between attempts while another process listens there */

/* ---- bind */

static int no_socket(const char *path, char *why)
{
	snprintf(why, KVT_WHY_BYTES, "socket_path %s exists and is not a socket: remove it or "
		 "choose another", path);
	return -EEXIST;
}

/* Remove a dead daemon's socket file. -EADDRINUSE: a process listens there, or the kernel has not
 * released what a dead one had. listener.holder: its pid, 0 if unknown. */
static int clear_socket(struct kvt_daemon *daemon, char *why)
{
	const char *path = daemon->listener.path;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred owner = { 0 };
	socklen_t bytes = sizeof(owner);
	struct stat there;
	int fd, error;

	if (lstat(path, &there) != 0)
		return 0;
	if (!S_ISSOCK(there.st_mode))
		return no_socket(path, why);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	strlcpy(address.sun_path, path, sizeof(address.sun_path));
	error = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : -errno;
	if (error == 0)
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &bytes);
	close(fd);
	daemon->listener.holder = owner.pid;
	if (error == -ECONNREFUSED) {
		unlink(path);
		return 0;
	}
	if (error == 0 && owner.pid > 0)
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use by a live process, pid %d: stop "
			 "it, or choose another socket_path", path, (int)owner.pid);
	else if (error == 0)
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use by a process of another PID "
			 "namespace: stop it, or choose another socket_path", path);
	else if (error == -EAGAIN)
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use by a process that takes no "
			 "connections, for its queue is full: end it (ss -xlp shows it), or choose "
			 "another socket_path", path);
	else
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use (%s): choose another socket_path",
			 path, strerror(-error));
	return -EADDRINUSE;
}

int kvt_socket_check(const char *path, bool in_folder, char *why)
{
	struct stat there;
	int error;

	if (lstat(path, &there) == 0)
		return S_ISSOCK(there.st_mode) ? 0 : no_socket(path, why);
	error = in_folder ? kvt_place_check(path) : 0;
	if (!error)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "cannot bind socket %s: %s", path, strerror(-error));
	return error;
}

static int own_socket(const struct kvt_daemon *daemon, char *why)
{
	gid_t gid = daemon->listener.gid;
	int error;

	if ((gid == (gid_t)-1 || chown(daemon->listener.path, (uid_t)-1, gid) == 0) &&
	    chmod(daemon->listener.path, (mode_t)daemon->config.socket_mode) == 0)
		return 0;
	error = -errno;
	snprintf(why, KVT_WHY_BYTES, "cannot set group and mode of %s: %s", daemon->listener.path,
		 strerror(-error));
	return error;
}

/* Set before accept(), so that messages sent before it carry their sender. */
static void pass_credentials(int fd)
{
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
}

/* Note which file the name leads to; none: 0. */
static void note_name(struct kvt_daemon *daemon)
{
	struct stat there = { 0 };

	if (lstat(daemon->listener.path, &there) != 0 || !S_ISSOCK(there.st_mode))
		there = (struct stat){ 0 };
	daemon->listener.file[0] = there.st_dev;
	daemon->listener.file[1] = there.st_ino;
}

int kvt_socket_bind(struct kvt_daemon *daemon, char *why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int error = clear_socket(daemon, why), fd;
	bool made = false;
	mode_t mask;

	if (error)
		return error;
	strlcpy(address.sun_path, daemon->listener.path, sizeof(address.sun_path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	mask = umask(0177); /* no client before group and mode are set */
	made = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
	error = made ? 0 : -errno;
	umask(mask);
	if (error)
		snprintf(why, KVT_WHY_BYTES, "cannot bind socket %s: %s", daemon->listener.path,
			 strerror(-error));
	else
		error = own_socket(daemon, why);
	kvt_connection_refuse_fds(fd); /* before the first connection */
	if (!error && listen(fd, KVT_LISTEN_BACKLOG) != 0)
		error = -errno;
	if (error) {
		if (made)
			unlink(daemon->listener.path);
		close(fd);
		return error;
	}
	daemon->listener.fd = fd;
	daemon->listener.made = true;
	pass_credentials(fd);
	note_name(daemon);
	return 0;
}

void kvt_socket_passed(struct kvt_daemon *daemon)
{
	struct sockaddr_un name = { 0 };
	socklen_t bytes = sizeof(name) - 1;

	kvt_connection_refuse_fds(daemon->listener.fd);
	pass_credentials(daemon->listener.fd);
	if (getsockname(daemon->listener.fd, (struct sockaddr *)&name, &bytes) == 0)
		strlcpy(daemon->listener.path, name.sun_path, sizeof(daemon->listener.path));
	if (daemon->listener.passed)
		note_name(daemon);
}

/* ---- the name */

static bool is_named(const struct kvt_daemon *daemon)
{
	struct stat there;

	return lstat(daemon->listener.path, &there) == 0 &&
	       there.st_dev == daemon->listener.file[0] && there.st_ino == daemon->listener.file[1];
}

void kvt_socket_unlink(struct kvt_daemon *daemon)
{
	if (daemon->listener.made && is_named(daemon))
		unlink(daemon->listener.path);
	daemon->listener.made = false;
}

/* Watch the file. A removed name changes the file's attributes. */
static void watch(struct kvt_daemon *daemon)
{
	daemon->listener.name_lost = false;
	daemon->listener.name_watched = daemon->listener.name_watched ||
		(daemon->listener.name_fd >= 0 &&
		inotify_add_watch(daemon->listener.name_fd, daemon->listener.path,
				  IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF | IN_DONT_FOLLOW) >= 0);
	daemon->listener.name_due_ns = daemon->clock.real_ns + LOOK_NS;
}

/* Log once why there is no name, and try again later. */
static void cannot_name(struct kvt_daemon *daemon, int error, const char *why)
{
	bool others = error == -EADDRINUSE || error == -EEXIST;

	if (!daemon->listener.name_lost)
		kvt_log(KVT_LOG_ERROR, "socket_lost", "socket=\"%s\" why=\"%s\" "
			"effect=\"connected clients continue; no client can connect\" cure=\"%s\"",
			daemon->listener.path, why, daemon->listener.passed ?
			"systemctl restart the .socket and the .service unit together" :
			"it is tried again every second; kill -HUP tries at once");
	daemon->listener.name_lost = true;
	daemon->listener.name_watched = false;
	daemon->listener.name_due_ns = daemon->clock.real_ns + (others ? OTHERS_NS : LOOK_NS);
	if (daemon->listener.name_due_ns < daemon->timers.next_ns)
		daemon->timers.next_ns = daemon->listener.name_due_ns;
}

/* Bind another socket, and leave none of the old one's queue behind. */
static void name_again(struct kvt_daemon *daemon)
{
	const uint64_t old_file[2] = { daemon->listener.file[0], daemon->listener.file[1] };
	char why[KVT_WHY_BYTES] = "";
	int old = daemon->listener.fd, error, locked;

	/* The directory may be gone, and the lock in it: another daemon must not start here. */
	locked = kvt_lock_again(&daemon->lock, daemon->config.runtime_dir,
				daemon->config.instance, why, sizeof(why));
	error = locked < 0 ? locked : kvt_socket_bind(daemon, why);
	if (error) {
		cannot_name(daemon, error, *why ? why : strerror(-error));
		return;
	}
	kvt_accept_moved(daemon, old);
	close(old);
	kvt_keep_socket(daemon, old_file, locked > 0);
	daemon->listener.name_watched = false; /* the watch is of the old file */
	kvt_log(KVT_LOG_WARNING, "socket_made_again", "socket=\"%s\" why=\"its name was "
		"removed, or led elsewhere\"", daemon->listener.path);
	watch(daemon);
}

uint64_t kvt_socket_look(struct kvt_daemon *daemon)
{
	if (daemon->draining || daemon->listener.fd < 0)
		return UINT64_MAX;
	if (is_named(daemon))
		watch(daemon);
	else if (daemon->listener.passed)
		cannot_name(daemon, -EEXIST, "its name was removed, and it is the service "
			    "manager's");
	else
		name_again(daemon);
	return daemon->listener.name_watched ? UINT64_MAX : daemon->listener.name_due_ns;
}

uint64_t kvt_socket_due(struct kvt_daemon *daemon)
{
	/* inotify does not see that a directory above was moved or mounted over. So look when a
	 * timer runs anyway. */
	if (daemon->clock.real_ns >= daemon->listener.name_due_ns)
		return kvt_socket_look(daemon);
	return daemon->listener.name_watched ? UINT64_MAX : daemon->listener.name_due_ns;
}

static void poll_name(struct kvt_daemon *daemon)
{
	if (daemon->listener.name_fd >= 0)
		kvt_loop_poll(&daemon->loop, daemon->listener.name_fd, POLLIN,
			      kvt_tag(KVT_TAG_NAME, 0, 0));
}

void kvt_socket_event(struct kvt_daemon *daemon)
{
	char events[4096];

	while (read(daemon->listener.name_fd, events, sizeof(events)) > 0)
		;
	poll_name(daemon);
	kvt_socket_look(daemon);
}

void kvt_socket_watch(struct kvt_daemon *daemon)
{
	daemon->listener.name_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	poll_name(daemon);
	kvt_socket_look(daemon);
}
