/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/setup/pool.h"

#include <stddef.h>

#include "daemon/setup/pool_backend.h"

const struct kvt_pool_backend_ops *kvt_pool_backend_find(uint32_t backend)
{
	static const struct kvt_pool_backend_ops *const table[] = {
		&kvt_pool_host_ops, &kvt_pool_cuda_ipc_ops, &kvt_pool_cuda_vmm_ops,
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i]->backend == backend)
			return table[i];
	return NULL;
}
