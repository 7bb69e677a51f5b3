/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_CHECK_H
#define KVT_LAB_ORACLE_CHECK_H

/** @file check.h: the sums of the model, recounted. */

#include "lab/oracle/state.h"

int check_counters(struct kvt_oracle *o);
int check_settled(struct kvt_oracle *o);

#endif
