/* SPDX-License-Identifier: Apache-2.0 */

/* Suspend and resume: a client that holds no lease, no private page and no mapping of the pool, and
 * keeps its session. The daemon takes no part: it only says what the session holds.
 *
 * Invariant: a suspended client's addresses are reserved, and its operations cannot get pages. */

#include <errno.h>
#include <stdlib.h>

#include "kvtrunk_group.h"
#include "kvtrunk_operations.h"
#include "kvtrunk_wire_admin.h"
#include "libclient/answer.h"
#include "libclient/call.h"
#include "libclient/client.h"
#include "libclient/device.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "libclient/stream.h"
#include "shm/size.h"

/* Find the daemon's record of this session. */
static int ask_session(struct kvt_client *client, struct kvt_admin_client *ret_record)
{
	struct kvt_admin_client *records = malloc(KVT_MESSAGE_MAX);
	struct kvt_message_admin request = { .what = KVT_ADMIN_CLIENTS };
	int n, rc = -ECONNRESET;

	if (!records)
		return kvt_client_fail(client, -ENOMEM, 0, "suspend: out of memory");
	do {
		n = kvt_admin(client, &request, NULL, 0, records, KVT_MESSAGE_MAX);
		for (int i = 0; i < n && rc != 0; i++)
			if (records[i].session == client->info.session && records[i].rank == 0) {
				*ret_record = records[i];
				rc = 0;
			}
	} while (n >= 0 && rc != 0 && request.cursor != 0);
	free(records);
	return n < 0 ? n
	       : rc  ? kvt_client_fail(client, rc, 0, "suspend: the daemon has no such session")
		     : 0;
}

static int round_trip(struct kvt_client *client)
{
	const struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result result;

	return kvt_client_call(client, &request, NULL, &result);
}

/* Check that the session holds nothing. */
static int check_session(struct kvt_client *client)
{
	struct kvt_admin_client held = { .n_leases = 0 };
	uint32_t unanswered;
	int rc = round_trip(client);

	/* The daemon polls fences behind the entries of a turn, so before the next entry of this
	 * session. Then only operations whose fence is not reached are unanswered, and BEGINs that
	 * wait. */
	if (rc == 0)
		rc = round_trip(client);
	if (rc == 0)
		rc = kvt_client_take_ready(client);
	if (rc != 0)
		return rc;
	unanswered = kvt_client_unanswered(client);
	if (unanswered)
		return kvt_client_fail(client, -EBUSY, 0,
				       "suspend: this client waits for %u answer%s: raise the "
				       "fences of these operations, and take the answers",
				       unanswered, kvt_plural(unanswered));
	rc = ask_session(client, &held);
	if (rc != 0)
		return rc;
	if (held.n_leases || held.n_private)
		return kvt_client_fail(client, -EBUSY, 0,
				       "suspend: this client holds %u lease%s and %u private "
				       "page%s: end its sequences, unlock its leases and free its "
				       "pages", held.n_leases, kvt_plural(held.n_leases),
				       held.n_private, kvt_plural(held.n_private));
	return 0;
}

int kvt_client_suspend(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	int rc;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc != 0 || client->suspended)
		return rc;
	rc = client->has_session ? check_session(client) : kvt_group_check(client);
	if (rc != 0)
		return rc;
	if (!kvt_streams_idle(client))
		return kvt_client_fail(client, -EBUSY, KVT_REASON_FENCE,
				       "suspend: a stream has not reached its last fence, and may "
				       "use the pool: wait for it (cuStreamSynchronize)");
	rc = kvt_host_unmap_all(client);
	if (rc != 0) {
		kvt_host_map_all(client);
		return rc;
	}
	kvt_device_suspend(client);
	client->suspended = true;
	return 0;
}

int kvt_client_resume(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	int rc;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc != 0 || !client->suspended)
		return rc;
	/* The daemon may have ended meanwhile: then no daemon owns the pool. */
	rc = client->has_session ? round_trip(client) : kvt_group_check(client);
	if (rc == 0)
		rc = kvt_device_resume(client);
	if (rc != 0)
		return rc;
	rc = kvt_host_map_all(client);
	if (rc != 0) {
		kvt_host_unmap_all(client);
		kvt_device_suspend(client);
		return rc;
	}
	client->suspended = false;
	return 0;
}
