/* SPDX-License-Identifier: Apache-2.0 */
/* No kernels: for builds without a C++ compiler. */
#include "tests/kernels/emulated.h"

int emulated_known(const char *name)
{
	return 0;
}

uint32_t emulated_args_bytes(const char *name)
{
	return 0;
}

void emulated_launch(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y)
{
	(void)name, (void)args, (void)grid_x, (void)grid_y;
}
