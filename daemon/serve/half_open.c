/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/half_open.h"

#include <errno.h>
#include <stdlib.h>

#include "shm/assert.h"

int kvt_half_opens_init(struct kvt_half_opens *set, uint32_t most)
{
	*set = (struct kvt_half_opens){
		.most = most,
		.uids = calloc(most, sizeof(*set->uids)),
		.memory = calloc(most, sizeof(*set->memory)),
	};
	TAILQ_INIT(&set->all);
	if (!set->uids || !set->memory)
		return -ENOMEM;
	for (uint32_t i = 0; i < most; i++)
		set->uids[i] = &set->memory[i];
	return 0;
}

void kvt_half_opens_free(struct kvt_half_opens *set)
{
	free(set->uids);
	free(set->memory);
	*set = (struct kvt_half_opens){ 0 };
}

/* Return the uid's index in uids[], or n_uids if it has none. */
static uint32_t find(const struct kvt_half_opens *set, uint32_t uid)
{
	uint32_t at = 0;

	while (at < set->n_uids && set->uids[at]->uid != uid)
		at++;
	return at;
}

void kvt_half_open_add(struct kvt_half_opens *set, struct kvt_half_open *one, uint32_t uid)
{
	uint32_t at = find(set, uid);
	struct kvt_half_open_uid *of_uid;

	KVT_ASSERT(set->n < set->most);
	of_uid = set->uids[at];
	if (at == set->n_uids) {
		set->n_uids++;
		of_uid->uid = uid;
		of_uid->n = 0;
		TAILQ_INIT(&of_uid->list);
	}
	one->uid = uid;
	one->number = ++set->number;
	TAILQ_INSERT_TAIL(&set->all, one, next);
	TAILQ_INSERT_TAIL(&of_uid->list, one, next_of_uid);
	of_uid->n++;
	set->n++;
}

void kvt_half_open_remove(struct kvt_half_opens *set, struct kvt_half_open *one)
{
	uint32_t at = find(set, one->uid);
	struct kvt_half_open_uid *of_uid;

	KVT_ASSERT(at < set->n_uids);
	of_uid = set->uids[at];
	TAILQ_REMOVE(&set->all, one, next);
	TAILQ_REMOVE(&of_uid->list, one, next_of_uid);
	set->n--;
	if (--of_uid->n == 0) {
		set->uids[at] = set->uids[--set->n_uids];
		set->uids[set->n_uids] = of_uid;
	}
}

struct kvt_half_open *kvt_half_open_in_the_way(const struct kvt_half_opens *set, uint32_t uid)
{
	struct kvt_half_open *found = NULL;
	uint32_t most = 0;

	if (set->n < set->most)
		return NULL;
	for (uint32_t i = 0; i < set->n_uids; i++) {
		const struct kvt_half_open_uid *of_uid = set->uids[i];
		struct kvt_half_open *oldest = TAILQ_FIRST(&of_uid->list);
		uint32_t n = of_uid->n + (of_uid->uid == uid); /* counting the new one */

		if (n < most || (n == most && oldest->number > found->number))
			continue;
		most = n;
		found = oldest;
	}
	KVT_ASSERT(found != NULL);
	return found;
}
