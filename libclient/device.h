/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_DEVICE_H
#define KVT_CLIENT_DEVICE_H

#include "libclient/state.h"

struct kvt_cu_driver;

/** The driver, loaded and initialized. -ENODEV, -EIO. */
int kvt_device_driver(struct kvt_client *client, const struct kvt_cu_driver **ret_driver);
/** Give up what this client mapped. */
void kvt_device_unmap_all(struct kvt_client *client);
/** Unmap what this client mapped, unless others of the process use it, and keep the addresses where
 * the driver can; map it again. After a failure nothing has changed. */
void kvt_device_suspend(struct kvt_client *client);
int kvt_device_resume(struct kvt_client *client);

#endif
