/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the libraries of engines are linked with and never call here: none works. */
#include "tests/lib/standin/standin.h"

enum { NOT_SUPPORTED = 801 };

#define LINKED_ONLY(name)             \
	EXPORT int name(void);        \
	EXPORT int name(void)         \
	{                             \
		return NOT_SUPPORTED; \
	}

LINKED_ONLY(cuCtxGetCurrent)
LINKED_ONLY(cuCtxSetCurrent)
LINKED_ONLY(cuGetExportTable)
LINKED_ONLY(cuGetProcAddress_v2)
LINKED_ONLY(cuPointerGetAttribute)
LINKED_ONLY(cuTensorMapEncodeTiled)
