/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_SLOT_H
#define KVT_CLIENT_SLOT_H

/**
 * @file slot.h
 * Slots, one for each operation in flight. A slot has the operation's ranges of the key and list
 * areas, the caller's user_data, and what to give back when its deadline has passed. The entry's
 * user_data is (slot generation << 32 | slot number): an answer to no operation in flight is
 * noticed.
 *
 *      free ──submit──► flying ──answer──► done ──reap──► held ──release──► free
 *                         │ deadline                        ▲ kvt_call: directly
 *                         └──► abandoned ──answer──► giving back (UNLOCK, END, FREE) ──► free
 *      free ──asynchronous commit──► ahead ──answer──► its sequence changes ──► free
 *                                                                │ told: flying, answered
 */

#include "libclient/state.h"

/** Append to a list; take its first, 0 if it is empty. */
void kvt_slot_push(struct kvt_client *client, struct kvt_slot_list *list, uint32_t number);
uint32_t kvt_slot_pop(struct kvt_client *client, struct kvt_slot_list *list);
/** Take a free slot (there must be one), with ranges of so many words of the key and list areas.
 * 0: no room in an area. */
uint32_t kvt_slot_take(struct kvt_client *client, uint32_t key_words, uint32_t list_words);
/** Count a BEGIN that may wait: from its submission to its answer. */
void kvt_slot_count_waiting(struct kvt_client *client, const struct kvt_slot *slot, bool waits);
/** Move the list of an answer out of the list area. False: there is none, or memory is short. */
bool kvt_slot_copy_list(struct kvt_client *client, struct kvt_slot *slot);
/** Free a slot and its ranges. Its name, with the generation, names nothing from now on. */
void kvt_slot_free(struct kvt_client *client, uint32_t number);

#endif
