/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file process.c
 * Shared by the processes of a scene: memory, the clock, the change of uid.
 */
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/attacks/attack.h"

void *attack_shared(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("attacks: mmap");
		exit(1);
	}
	return memory;
}

void attack_become(uid_t uid, pid_t parent)
{
	if (getuid() == 0 && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
		_exit(126);
	/* A change of uid clears both. */
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
}
