/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/alarm.h"

#include <stdio.h>

#include "base/number.h"
#include "kvtrunk_wire_store.h"
#include "shm/size.h"

/* An alarm: so long without a load, while the pool was filled so often. Filled twice, it has
 * evicted at least as much as it holds. */
#define ALARM_NS (3600ull * 1000000000)
#define ALARM_FILLS 2u
#define RATED_NS (3600ull * 1000000000) /* up for so long, its writes make a rate of a day */

const char *kvt_store_wear_text(const struct kvt_store_status *status, char *buffer, size_t bytes)
{
	double times = status->file_room_pages ? (double)status->file_written_pages /
						 (double)status->file_room_pages : 0;
	bool rated = status->uptime_ns >= RATED_NS;
	char age[32];

	if (rated)
		snprintf(buffer, bytes, "%.1f times its size written a day",
			 times * 86400e9 / (double)status->uptime_ns);
	else
		snprintf(buffer, bytes, "%.1f times its size written in %s; a day's rate follows "
			 "after an hour", times, kvt_age_text(status->uptime_ns, age, sizeof(age)));
	return buffer;
}

/* Write " (redis)", or nothing. */
static const char *kind_text(const struct kvt_store_status *status, char kind[24])
{
	kind[0] = '\0';
	if (*status->helper_kind)
		snprintf(kind, 24, " (%.15s)", status->helper_kind);
	return kind;
}

bool kvt_store_alarm(const struct kvt_store_status *status, char *why, size_t bytes)
{
	char age[32], kind[24];
	const char *cause = "the prompts do not come again, or no longer fit: give it more memory";

	if (!status->connected) {
		snprintf(why, bytes, "it has no daemon: is kvtrunkd running? Its log says why");
		return true;
	}
	if (status->damaged_pages) {
		snprintf(why, bytes, "%llu cached page%s changed after being sealed: withdrawn; "
			 "the store's log has pages and times, the daemon's the processes "
			 "(event=page_damaged); restart the store once the one that wrote is "
			 "mended", (unsigned long long)status->damaged_pages,
			 kvt_plural(status->damaged_pages));
		return true;
	}
	if (status->file_bad_slots || status->file_closed) {
		snprintf(why, bytes, "the disk of its file %s (%llu place%s lost): the store's "
			 "log has the error; it does without them until it is restarted",
			 status->file_closed ? "fails, or is slow: it is closed for a while" :
			 "failed", (unsigned long long)status->file_bad_slots,
			 kvt_plural(status->file_bad_slots));
		return true;
	}
	if (status->helper_full) {
		snprintf(why, bytes, "the distributed store%s cannot write most pages: give it "
			 "memory if it is full; else the store's log has the error",
			 kind_text(status, kind));
		return true;
	}
	if (status->helper_garbage) {
		snprintf(why, bytes, "the distributed store%s returns damaged pages, which are "
			 "computed: its memory or network fails, or another program writes it",
			 kind_text(status, kind));
		return true;
	}
	if (status->unloaded_ns < ALARM_NS ||
	    status->unloaded_pages < ALARM_FILLS * status->pool_pages)
		return false;
	if (status->fetches == 0)
		cause = "no client has asked it: engines must see its socket, beside the daemon's";
	else if (status->recomputed_pages)
		cause = "clients compute what it has: do they fetch before they begin, and do "
			"prompts have --min-positions?";
	snprintf(why, bytes, "nothing was loaded for %s, while clients computed %llu page%s, and "
		 "the pool holds %llu; %s", kvt_age_text(status->unloaded_ns, age, sizeof(age)),
		 (unsigned long long)status->unloaded_pages, kvt_plural(status->unloaded_pages),
		 (unsigned long long)status->pool_pages, cause);
	return true;
}
