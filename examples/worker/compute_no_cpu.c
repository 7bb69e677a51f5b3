/* SPDX-License-Identifier: Apache-2.0 */

/* In place of compute_cpu.c where there is no OpenBLAS. */

#include <errno.h>
#include <stdio.h>

#include "compute.h"

bool compute_cpu_is_built(void)
{
	return false;
}

int compute_cpu_open(const struct model *model, struct compute **ret_compute, char *why)
{
	(void)model, (void)ret_compute;
	snprintf(why, WORKER_WHY_BYTES, "this worker cannot compute on the CPU: it was built "
		 "without OpenBLAS; install libopenblas-dev and build it again, or use "
		 "--device cuda");
	return -ENOTSUP;
}
