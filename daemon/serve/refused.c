/* SPDX-License-Identifier: Apache-2.0 */
/* End the daemon in words when the host refuses a system call that it cannot serve without. Its
 * successor finds what the host allows then. Called wherever such a call fails. */

#include "daemon/serve/refused.h"

#include <errno.h>
#include <string.h>

#include "daemon/serve/state.h"

void kvt_host_ends(struct kvt_daemon *daemon, const char *call, int error)
{
	if (daemon->refused)
		return;
	daemon->refused = call;
	daemon->over = true;
	daemon->keep = daemon->notify.store && !daemon->draining;
	kvt_log(KVT_LOG_ERROR, "refused_by_host", "call=%s error=\"%s\" effect=\"this daemon ends; "
		"%s\" cure=\"" KVT_HOST_CURE "\"", call, strerror(error), daemon->keep ?
		"its keeper starts a successor" : "the cache ends with it");
}

bool kvt_host_refuses(struct kvt_daemon *daemon, const char *call, int error)
{
	if (error != EPERM && error != EACCES && error != ENOSYS)
		return false;
	kvt_host_ends(daemon, call, error);
	return true;
}
