/* SPDX-License-Identifier: Apache-2.0 */
#include "store/attach.h"

/* Map the pool, where the driver shows it. */
static int map_pool(struct kvt_client *client, struct kvt_device **device,
		    struct kvt_slabs *ret_slabs, struct kvt_error *why)
{
	bool on_device = kvt_client_info(client)->backend != KVT_POOL_HOST;

	if (on_device && !*device && kvt_device_open(device, why) != 0)
		return why->code;
	return kvt_slabs_map(ret_slabs, client, on_device ? *device : NULL, why);
}

int kvt_attach(const char *socket_path, int64_t call_ns, struct kvt_client **ret_client,
	       struct kvt_device **device, struct kvt_slabs *ret_slabs, struct kvt_error *why)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	int rc;

	options.socket_path = socket_path;
	options.label = "kvtstored";
	options.flags = KVT_ANY_GEOMETRY; /* it writes pages as it read them */
	options.begin_wait_ns = -1;
	options.connect_wait_ns = -1;
	options.timeout_ns = call_ns;
	options.store_path = "";
	rc = kvt_client_connect(&client, &options, why);
	if (rc != 0)
		return rc;
	rc = map_pool(client, device, ret_slabs, why);
	if (rc != 0)
		kvt_client_close(client, KVT_IDLE);
	else
		*ret_client = client;
	return rc;
}
