/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file linux-5.14.c
 * linux-5.14 COMMAND...: run a command with the system calls of Linux 5.14 only, without io_uring.
 *
 * A seccomp filter answers as that kernel does: ENOSYS to newer system calls, and the error for an
 * unknown one to newer socket options, flags of memfd_create() and pidfd_open(), and advice of
 * madvise(). io_uring is ENOSYS, too, as where a container's profile or the host refuses it. What
 * newer kernels do differently within a system call stays different. Exits with 77 where no filter
 * can be set.
 */
#include <err.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LAST_CALL 447          /* memfd_secret */
#define LAST_SOCKET_OPTION 72  /* SO_BUF_LOCK */
#define LAST_ADVICE 23         /* MADV_POPULATE_WRITE */
#define FIRST_HARDWARE_ADVICE 100 /* MADV_HWPOISON and MADV_SOFT_OFFLINE: older */
#define NEW_MEMFD_FLAGS 0x18   /* MFD_NOEXEC_SEAL, MFD_EXEC */
#define PIDFD_FLAGS 04000      /* PIDFD_NONBLOCK: the only one */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define FAIL(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
/* Skip `n` instructions if the loaded word is not, is at most, is at least this value, or has none
 * of these bits. */
#define UNLESS(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, n)
#define UP_TO(value, n) BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, value, 0, n)
#define FROM(value, n) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, n, 0)
#define WITHOUT(bits, n) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, n)

/* Each group either decides or falls through with the call's number loaded again. */
static struct sock_filter filter[] = {
	LOAD(nr),
	UP_TO(LAST_CALL, 1),
	FAIL(ENOSYS),
	FROM(SYS_io_uring_register + 1, 2),
	UP_TO(SYS_io_uring_setup - 1, 1),
	FAIL(ENOSYS),

	UNLESS(SYS_memfd_create, 4),
	LOAD(args[1]),
	WITHOUT(NEW_MEMFD_FLAGS, 1),
	FAIL(EINVAL),
	ALLOW,

	UNLESS(SYS_pidfd_open, 4),
	LOAD(args[1]),
	WITHOUT(~(unsigned int)PIDFD_FLAGS, 1),
	FAIL(EINVAL),
	ALLOW,

	UNLESS(SYS_madvise, 5),
	LOAD(args[2]),
	UP_TO(LAST_ADVICE, 2),
	FROM(FIRST_HARDWARE_ADVICE, 1),
	FAIL(EINVAL),
	ALLOW,

	UNLESS(SYS_setsockopt, 1),
	BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0),
	UNLESS(SYS_getsockopt, 5),
	LOAD(args[1]),
	UNLESS(SOL_SOCKET, 3),
	LOAD(args[2]),
	UP_TO(LAST_SOCKET_OPTION, 1),
	FAIL(ENOPROTOOPT),
	ALLOW,
};

static void check(const char *what, long result, int wanted)
{
	int got = result < 0 ? errno : 0;

	if (got != wanted)
		errx(1, "%s ends with error %d, not %d: the filter is wrong", what, got, wanted);
}

/* A filter with a wrong jump would let tests pass that prove nothing. */
static void check_filter(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), on = 1;
	socklen_t bytes = sizeof(on);

	for (long call = SYS_io_uring_setup; call <= SYS_io_uring_register; call++)
		check("io_uring", syscall(call, 0, 0, 0, 0), ENOSYS);
	check("the next call", syscall(LAST_CALL + 1, 0, 0), ENOSYS);
	check("futex_waitv", syscall(449, 0, 0, 0, 0, 0), ENOSYS);
	check("epoll_pwait2", syscall(SYS_epoll_pwait2, -1, 0, 0, 0, 0, 0), EBADF);
	check("pidfd_open", close((int)syscall(SYS_pidfd_open, getpid(), 0)), 0);
	check("PIDFD_THREAD", syscall(SYS_pidfd_open, getpid(), 0200), EINVAL);
	check("memfd_create", close(memfd_create("old", MFD_CLOEXEC | MFD_ALLOW_SEALING)), 0);
	check("MFD_EXEC", memfd_create("new", 0x10), EINVAL);
	check("madvise", madvise(NULL, 0, MADV_NORMAL), 0);
	check("MADV_DONTNEED_LOCKED", madvise(NULL, 0, 24), EINVAL);
	check("SO_PASSCRED", setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	check("SO_PASSRIGHTS", setsockopt(fd, SOL_SOCKET, 83, &on, sizeof(on)), ENOPROTOOPT);
	check("SO_TYPE", getsockopt(fd, SOL_SOCKET, SO_TYPE, &on, &bytes), 0);
	check("SO_PEERPIDFD", getsockopt(fd, SOL_SOCKET, 77, &on, &bytes), ENOPROTOOPT);
	close(fd);
}

int main(int argc, char **argv)
{
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (argc < 2)
		errx(2, "usage: linux-5.14 COMMAND...");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		printf("skip: no seccomp filter can be set here\n");
		return 77;
	}
	check_filter();
	execvp(argv[1], argv + 1);
	err(126, "%s", argv[1]);
}
