/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/layout.h"

#include "kvtrunk_wire.h"

uint64_t kvt_layout(void)
{
	return kvt_abi_layout();
}
