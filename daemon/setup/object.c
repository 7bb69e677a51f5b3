/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file object.c
 * The lock file, shared-memory objects, and processes that still map them (object.h).
 *
 * Other users may write to the directories, so a file is opened first and then checked by its
 * descriptor. Only the lock holder removes files. Each object has its own flock, which shows other
 * instances that its daemon lives. Called by start.c and the keeper; session.c and group.c make
 * sealed objects.
 */
#include "daemon/setup/object.h"

#include <bsd/string.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "shm/assert.h"
#include "shm/limit.h"
#include "shm/map.h"

#define SHM_DIRECTORY "/dev/shm"
#define LOCK_NAME "lock"
/* Flags of /proc/PID/stat, from the kernel's include/linux/sched.h. */
#define PF_EXITING 0x4u
#define PF_DUMPCORE 0x200u
#define PF_SIGNALED 0x400u

/* Check that the path still names the locked file. An exiting daemon may have unlinked it between
 * our open and flock (TOCTOU). */
static int lock_is_current(int fd, const char *path)
{
	struct stat ours, there;

	return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
	       ours.st_dev == there.st_dev;
}

/* Open our directory, made if missing. -EACCES: another user's; -EAGAIN: an exiting daemon removed
 * it meanwhile. */
static int open_private(const char *path)
{
	struct stat there;
	int fd, error = 0;

	if (mkdir(path, 0700) != 0 && errno != EEXIST)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	if (fstat(fd, &there) != 0)
		error = -errno;
	else if (there.st_uid != geteuid())
		error = -EACCES;
	else if ((there.st_mode & 0777) != 0700 && fchmod(fd, 0700) != 0)
		error = -errno;
	if (error)
		close(fd);
	return error ? error : fd;
}

static int lock_open(const struct kvt_lock_file *lock, int *ret_stale)
{
	for (;;) {
		int private = open_private(lock->private), stale, fd, error;
		struct stat before;

		if (private == -EAGAIN)
			continue;
		if (private < 0)
			return private;
		stale = fstatat(private, LOCK_NAME, &before, AT_SYMLINK_NOFOLLOW) == 0;
		fd = openat(private, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		error = fd < 0 ? -errno : 0;
		close(private);
		if (error == -ENOENT) /* the directory was removed */
			continue;
		if (error)
			return error;
		if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
			error = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
			close(fd);
			return error;
		}
		if (lock_is_current(fd, lock->path)) {
			*ret_stale = stale;
			return fd;
		}
		close(fd);
	}
}

/* Read a lock file: "PID", or "PID DRAIN_MS" of a daemon that stops. */
static long read_pid(const char *path, int *ret_drain_ms)
{
	FILE *file = fopen(path, "re");
	long pid = 0;

	*ret_drain_ms = 0;
	if (!file)
		return 0;
	if (fscanf(file, "%ld %d", &pid, ret_drain_ms) < 1)
		pid = 0;
	fclose(file);
	return pid;
}

static void lock_name(struct kvt_lock_file *lock, const char *directory, const char *instance)
{
	strlcpy(lock->directory, directory, sizeof(lock->directory));
	snprintf(lock->private, sizeof(lock->private), "%s/%s.lock.d", directory, instance);
	snprintf(lock->path, sizeof(lock->path), "%s/" LOCK_NAME, lock->private);
}

bool kvt_lock_held(const char *directory, const char *instance)
{
	struct kvt_lock_file lock;
	long pid;

	lock_name(&lock, directory, instance);
	pid = read_pid(lock.path, &lock.drain_ms);
	return pid > 0 && !kvt_process_ending((pid_t)pid);
}

int kvt_lock_sign(struct kvt_lock_file *lock)
{
	return ftruncate(lock->fd, 0) == 0 && lseek(lock->fd, 0, SEEK_SET) == 0 &&
			       dprintf(lock->fd, "%ld\n", (long)getpid()) > 0 ?
		       0 :
		       -errno;
}

void kvt_lock_drain(const struct kvt_lock_file *lock, int drain_ms)
{
	char text[48];
	int n = snprintf(text, sizeof(text), "%ld %d\n", (long)getpid(), drain_ms);

	if (lock->fd >= 0 && pwrite(lock->fd, text, (size_t)n, 0) != n)
		return; /* then a start does not wait */
}

/* Say who holds the lock, from what its file says. */
static void explain_holder(struct kvt_lock_file *lock, const char *instance, char *why,
			   size_t why_size)
{
	lock->holder = (pid_t)read_pid(lock->path, &lock->drain_ms);
	if (lock->drain_ms > 0)
		snprintf(why, why_size, "the daemon of instance '%s', pid %ld, is being stopped, "
			 "and lets leases end for up to %d ms", instance, (long)lock->holder,
			 lock->drain_ms);
	else
		snprintf(why, why_size, "instance '%s' is already served by a live daemon, pid %ld "
			 "(it holds %s): stop it, or choose another instance or runtime_dir",
			 instance, (long)lock->holder, lock->path);
}

static void explain_refusal(struct kvt_lock_file *lock, const char *instance, int error, char *why,
			    size_t why_size)
{
	struct stat there;

	if (error == -EADDRINUSE) {
		explain_holder(lock, instance, why, why_size);
	} else if (error == -EACCES && stat(lock->private, &there) == 0 &&
		   there.st_uid != geteuid()) {
		snprintf(why, why_size, "%s is of uid %u, whose daemon serves instance '%s' or "
			 "left it: run as that user, remove it, or choose another instance or "
			 "runtime_dir", lock->private, (unsigned int)there.st_uid, instance);
	} else {
		snprintf(why, why_size, "cannot open the lock file %s: %s", lock->path,
			 strerror(-error));
	}
}

/* Say why the directory cannot be made. */
static int no_directory(const char *directory, int error, char *why, size_t why_size)
{
	snprintf(why, why_size, "cannot make runtime_dir %s: %s; make it for the daemon's user, or "
		 "choose another", directory, strerror(-error));
	return error;
}

int kvt_place_check(const char *path)
{
	char parent[PATH_MAX];

	strlcpy(parent, path, sizeof(parent) - 2);
	strlcat(dirname(parent), "/.", sizeof(parent)); /* ENOTDIR if it is none */
	return euidaccess(parent, W_OK | X_OK) == 0 ? 0 : -errno;
}

int kvt_lock_check(const char *directory, const char *instance, char *why, size_t why_size)
{
	struct kvt_lock_file lock = { .fd = -1 };
	struct stat there;
	int error = 0;

	lock_name(&lock, directory, instance);
	if (stat(directory, &there) != 0) {
		error = kvt_place_check(directory);
		return error ? no_directory(directory, error, why, why_size) : 0;
	}
	if (!S_ISDIR(there.st_mode))
		error = -ENOTDIR;
	else if (stat(lock.private, &there) == 0)
		error = there.st_uid == geteuid() ? 0 : -EACCES;
	else if (euidaccess(directory, W_OK | X_OK) != 0)
		error = -errno;
	if (error)
		explain_refusal(&lock, instance, error, why, why_size);
	return error;
}

int kvt_lock_take(struct kvt_lock_file *lock, const char *directory, const char *instance,
		  int *ret_stale, char *why, size_t why_size)
{
	int error, stale = 0;

	*lock = (struct kvt_lock_file){ .fd = -1 };
	lock_name(lock, directory, instance);
	if (mkdir(directory, 0755) == 0) {
		lock->made_directory = 1;
	} else if (errno != EEXIST) {
		return no_directory(directory, -errno, why, why_size);
	}
	lock->fd = lock_open(lock, &stale);
	if (lock->fd < 0) {
		error = lock->fd;
		lock->fd = -1;
		explain_refusal(lock, instance, error, why, why_size);
		if (lock->made_directory)
			rmdir(directory);
		return error;
	}
	error = kvt_lock_sign(lock);
	if (error) {
		snprintf(why, why_size, "cannot write the lock file %s: %s", lock->path,
			 strerror(-error));
		kvt_lock_release(lock);
		return error;
	}
	*ret_stale = stale;
	return 0;
}

int kvt_lock_adopt(struct kvt_lock_file *lock, int fd, const char *directory, const char *instance,
		   int made_directory)
{
	*lock = (struct kvt_lock_file){ .fd = fd, .made_directory = made_directory };
	lock_name(lock, directory, instance);
	return lock_is_current(fd, lock->path) ? 0 : -ESTALE;
}

int kvt_lock_again(struct kvt_lock_file *lock, const char *directory, const char *instance,
		   char *why, size_t why_size)
{
	struct kvt_lock_file fresh;
	int stale, error;

	if (lock_is_current(lock->fd, lock->path))
		return 0;
	error = kvt_lock_take(&fresh, directory, instance, &stale, why, why_size);
	if (error)
		return error;
	close(lock->fd);
	*lock = fresh;
	return 1;
}

void kvt_lock_release(struct kvt_lock_file *lock)
{
	if (lock->fd < 0)
		return;
	unlink(lock->path); /* before closing: see lock_is_current() */
	rmdir(lock->private);
	close(lock->fd);
	lock->fd = -1;
	if (lock->made_directory)
		rmdir(lock->directory);
}

void kvt_object_prefix(char to[KVT_OBJECT_NAME_BYTES], const char *directory,
		       const char *instance)
{
	char *real = realpath(directory, NULL);
	uint32_t hash = 0x811c9dc5u;

	for (const char *c = real ? real : directory; *c; c++)
		hash = (hash ^ (uint8_t)*c) * 0x01000193u;
	free(real);
	snprintf(to, KVT_OBJECT_NAME_BYTES, "/kvtrunk.%.48s.%08x.", instance, hash);
}

/* Seconds since the file last changed. Not by time(NULL), which shows the last tick: since Linux
 * 6.13 the times of a file may be up to a tick ahead of it. */
static int64_t age_s(const struct stat *file)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec - file->st_ctim.tv_sec;
}

/* True if the object is ours, old enough, and no daemon holds its lock: its daemon crashed. */
static int is_orphan(int directory, const char *name, int64_t least_age_s)
{
	struct stat there;
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int orphan;

	if (fd < 0)
		return 0;
	orphan = fstat(fd, &there) == 0 && S_ISREG(there.st_mode) &&
		 there.st_uid == geteuid() && age_s(&there) >= least_age_s &&
		 flock(fd, LOCK_EX | LOCK_NB) == 0;
	close(fd);
	return orphan;
}

/* Remove objects by their prefix: all, or orphans that are old enough. */
static int clean(const char *prefix, bool orphans, int64_t least_age_s)
{
	DIR *directory = opendir(SHM_DIRECTORY);
	struct dirent *entry;
	int n = 0;

	if (!directory)
		return 0;
	while ((entry = readdir(directory)))
		if (strncmp(entry->d_name, prefix + 1, strlen(prefix + 1)) == 0 &&
		    (!orphans || is_orphan(dirfd(directory), entry->d_name, least_age_s)) &&
		    unlinkat(dirfd(directory), entry->d_name, 0) == 0)
			n++;
	closedir(directory);
	return n;
}

int kvt_object_clean(const char *prefix)
{
	return clean(prefix, false, 0);
}

int kvt_object_clean_orphans(const char *prefix, int64_t least_age_s)
{
	return clean(prefix, true, least_age_s);
}

int kvt_object_room(uint64_t bytes, uint64_t back, char *why, size_t why_size)
{
	struct statvfs there;
	uint64_t room;

	if (statvfs(SHM_DIRECTORY, &there) != 0 || !there.f_blocks)
		return 0;
	room = (uint64_t)there.f_bavail * there.f_frsize + back;
	if (bytes <= room)
		return 0;
	snprintf(why, why_size, "the arena needs %llu bytes of " SHM_DIRECTORY ", which has %llu "
		 "free of %llu: enlarge it (docker: --shm-size, Kubernetes: an emptyDir of medium "
		 "Memory, else mount -o remount,size=) or lower n_pages",
		 (unsigned long long)bytes, (unsigned long long)room,
		 (unsigned long long)there.f_blocks * there.f_frsize);
	return -ENOSPC;
}

/* Allocate the object. Checks the room first: posix_fallocate() alone would fill the file system
 * before it fails. */
static int object_allocate(struct kvt_object *object, const char *what, char *why,
			   size_t why_size)
{
	int error = kvt_object_room(object->bytes, 0, why, why_size);

	if (error)
		return error;
	error = -posix_fallocate(object->fd, 0, (off_t)object->bytes);
	if (error)
		snprintf(why, why_size, "cannot allocate %llu bytes for the %s in " SHM_DIRECTORY
			 ": %s", (unsigned long long)object->bytes, what,
			 kvt_limit_text(-error));
	return error;
}

void kvt_object_undump(void *base, uint64_t bytes)
{
	static bool said;

	if (madvise(base, bytes, MADV_DONTDUMP) == 0 || said)
		return;
	said = true;
	kvt_log(KVT_LOG_WARNING, "in_core_dumps", "error=\"%s\" effect=\"a core file of the "
		"daemon has its clients' keys\" cure=\"allow madvise(), or ulimit -c 0\"",
		strerror(errno));
}

int kvt_object_create(struct kvt_object *object, const char *prefix, const char *what,
		      uint64_t bytes, char *why, size_t why_size)
{
	uint32_t suffix;
	int error;

	KVT_ASSERT(prefix[0] == '/' && bytes > 0);
	if (getrandom(&suffix, sizeof(suffix), 0) != sizeof(suffix))
		suffix = (uint32_t)getpid();
	*object = (struct kvt_object){ .fd = -1, .bytes = bytes };
	snprintf(object->name, sizeof(object->name), "%.90s%s.%08x", prefix, what, suffix);
	object->fd = shm_open(object->name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (object->fd < 0) {
		error = -errno;
		snprintf(why, why_size, "cannot make " SHM_DIRECTORY "%s: %s", object->name,
			 strerror(-error));
		object->name[0] = '\0';
		return error;
	}
	flock(object->fd, LOCK_EX); /* see is_orphan() */
	error = object_allocate(object, what, why, why_size);
	if (!error) {
		object->base = kvt_map(bytes, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_POPULATE, object->fd);
		if (object->base) {
			kvt_map_huge(object->base, bytes);
			kvt_object_undump(object->base, bytes);
		} else {
			error = -errno;
			snprintf(why, why_size, "cannot map %llu bytes of the %s: %s",
				 (unsigned long long)bytes, what, strerror(-error));
		}
	}
	if (error)
		kvt_object_destroy(object);
	return error;
}

int kvt_object_open_readonly(const struct kvt_object *object)
{
	char path[64];
	int fd;

	KVT_ASSERT(object->fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", object->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fchmod(object->fd, 0400) != 0) {
		int error = -errno;

		close(fd);
		return error;
	}
	return fd;
}

void kvt_object_forget_name(struct kvt_object *object)
{
	if (object->name[0])
		shm_unlink(object->name);
	object->name[0] = '\0';
}

int kvt_object_take(struct kvt_object *object, int fd)
{
	struct stat there;
	int error = 0;

	KVT_ASSERT(fd >= 0);
	*object = (struct kvt_object){ .fd = fd };
	if (fstat(fd, &there) != 0)
		error = -errno;
	else if (!S_ISREG(there.st_mode) || there.st_size <= 0)
		error = -EINVAL;
	object->bytes = error ? 0 : (uint64_t)there.st_size;
	if (!error) {
		object->base = kvt_map(object->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
		if (!object->base)
			error = -errno;
		else
			kvt_object_undump(object->base, object->bytes);
	}
	if (error)
		kvt_object_destroy(object);
	return error;
}

int kvt_object_create_private(struct kvt_object *object, const char *what, uint64_t bytes)
{
	int error = 0;

	*object = (struct kvt_object){ .fd = memfd_create(what, MFD_CLOEXEC), .bytes = bytes };
	if (object->fd < 0 || ftruncate(object->fd, (off_t)bytes) != 0) {
		error = -errno;
	} else {
		object->base = kvt_map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, object->fd);
		if (!object->base)
			error = -errno;
		else
			kvt_object_undump(object->base, bytes);
	}
	if (error)
		kvt_object_destroy(object);
	return error;
}

int kvt_object_create_unmapped(const char *what, uint64_t bytes, int *ret_fd)
{
	int fd = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING), error;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
		error = -errno;
		close(fd);
		return error;
	}
	*ret_fd = fd;
	return 0;
}

int kvt_object_create_sealed(struct kvt_object *object, const char *what, uint64_t bytes)
{
	int error;

	*object = (struct kvt_object){ .fd = -1, .bytes = bytes };
	error = kvt_object_create_unmapped(what, bytes, &object->fd);
	if (error)
		return error;
	object->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, object->fd, 0);
	if (object->base == MAP_FAILED) {
		error = -errno;
		object->base = NULL;
		kvt_object_destroy(object);
		return error;
	}
	kvt_object_undump(object->base, bytes);
	return 0;
}

void kvt_object_destroy(struct kvt_object *object)
{
	KVT_ASSERT(!object->base || object->bytes > 0);
	if (object->base)
		munmap(object->base, object->bytes);
	if (object->fd >= 0)
		close(object->fd);
	kvt_object_forget_name(object);
	*object = (struct kvt_object){ .fd = -1 };
}

/* True if the process maps a file whose path starts with `path`. */
static bool maps_path(const char *pid, const char *path)
{
	char name[300], line[1024];
	bool found = false;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%s/maps", pid);
	file = fopen(name, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, path) != NULL;
	if (file)
		fclose(file);
	return found;
}

static void process_name(int pid, char *to, size_t size)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	file = fopen(path, "re");
	if (!file || !fgets(to, (int)size, file))
		snprintf(to, size, "?");
	if (file)
		fclose(file);
	to[strcspn(to, "\n")] = '\0';
}

static void add_holder(struct kvt_object_holders *holders, int pid)
{
	size_t used = strlen(holders->names);
	char comm[64];

	if (holders->n < sizeof(holders->pids) / sizeof(holders->pids[0]))
		holders->pids[holders->n] = pid;
	if (holders->n++ >= 4) /* named once the first four are gone */
		return;
	process_name(pid, comm, sizeof(comm));
	snprintf(holders->names + used, sizeof(holders->names) - used, "%spid %d (%s)",
		 used ? ", " : "", pid, comm);
}

/* Flags of a process's main thread; 0 if there is none. */
static unsigned int process_flags(int pid)
{
	char path[64], line[512] = "";
	const char *behind_name;
	unsigned int flags = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	behind_name = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	fclose(file);
	/* State, parent, group, session, terminal, its group, flags. */
	if (!behind_name ||
	    sscanf(behind_name, ") %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
		return 0;
	return flags;
}

/* True if the main thread is exiting or a zombie, and the process still exists. */
static bool is_ending(int pid)
{
	struct pollfd ended = { .fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
	bool is_there;

	if (ended.fd < 0)
		return false;
	is_there = poll(&ended, 1, 0) == 0;
	close(ended.fd);
	return is_there && (process_flags(pid) & PF_EXITING);
}

static bool is_being_killed(pid_t pid)
{
	unsigned long long pending = 0;
	char path[64], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "SigPnd: %llx", &pending) == 1)
			break;
	if (file)
		fclose(file);
	return pending & 1ull << (SIGKILL - 1);
}

bool kvt_process_ending(pid_t pid)
{
	if (pid <= 0)
		return false;
	/* In this order: a signal that is no longer pending shows in the flags. */
	return (kill(pid, 0) != 0 && errno == ESRCH) || is_being_killed(pid) ||
	       (process_flags(pid) & (PF_EXITING | PF_DUMPCORE | PF_SIGNALED));
}

static bool is_holder(const struct kvt_object_holders *holders, int pid)
{
	for (uint32_t i = 0; i < holders->n && i < sizeof(holders->pids) / sizeof(int); i++)
		if (holders->pids[i] == pid)
			return true;
	return false;
}

bool kvt_object_held(const char *prefix, struct kvt_object_holders *holders)
{
	const struct kvt_object_holders before = *holders;
	char path[KVT_OBJECT_NAME_BYTES + 16];
	DIR *dir = opendir("/proc");
	struct dirent *entry;

	*holders = (struct kvt_object_holders){ 0 };
	snprintf(path, sizeof(path), "/dev/shm%s", prefix);
	while (dir && (entry = readdir(dir))) {
		int pid = atoi(entry->d_name);

		if (pid > 0 && pid != (int)getpid() &&
		    (maps_path(entry->d_name, path) || (is_holder(&before, pid) && is_ending(pid))))
			add_holder(holders, pid);
	}
	if (dir)
		closedir(dir);
	return holders->n > 0;
}
