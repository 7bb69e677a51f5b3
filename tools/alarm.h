/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_ALARM_H
#define KVT_TOOLS_ALARM_H

/** @file alarm.h: what the operator of a store is told of it. */

#include <stdbool.h>
#include <stddef.h>

struct kvt_store_status;

/** Write what is wrong with a store that answers, with the cure, into `why`. False: nothing. */
bool kvt_store_alarm(const struct kvt_store_status *status, char *why, size_t bytes);

/** Write how often the whole file is written, which is what drives are rated by: a day, once the
 * store is up for an hour, before that since its start. Returns `buffer`. */
const char *kvt_store_wear_text(const struct kvt_store_status *status, char *buffer, size_t bytes);

#endif
