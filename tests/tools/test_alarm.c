/* SPDX-License-Identifier: Apache-2.0 */
/* When a store is found wrong, and what its operator is told. */
#include <string.h>

#include "kvtrunk_wire_store.h"
#include "tests/lib/cases.h"
#include "tools/alarm.h"

#define HOUR_NS (3600ull * 1000000000)

/* Filled so often, so long since a load. */
static struct kvt_store_status status_of(uint64_t computed, uint64_t unloaded_ns)
{
	return (struct kvt_store_status){ .connected = 1, .pool_pages = 1000, .pages = 500,
					  .unloaded_pages = computed, .unloaded_ns = unloaded_ns };
}

static void wrong(const struct kvt_store_status *status, const char *expected)
{
	char why[400] = "";

	assert_int_equal(kvt_store_alarm(status, why, sizeof(why)), expected != NULL);
	if (expected && !strstr(why, expected))
		fail_msg("'%s' is not in: %s", expected, why);
}

TEST(a_store_is_wrong_if_much_was_computed_and_nothing_loaded_for_an_hour)
{
	struct kvt_store_status status = status_of(2000, HOUR_NS);

	wrong(&status, "nothing was loaded for 60 min, while clients computed 2000 pages, and the "
		       "pool holds 1000; no client has asked it");
	status = status_of(2000, HOUR_NS - 1);
	wrong(&status, NULL);
	status = status_of(1999, 100 * HOUR_NS);
	wrong(&status, NULL);
}

TEST(the_likely_cause_is_told)
{
	struct kvt_store_status status = status_of(5000, 3 * HOUR_NS);

	wrong(&status, "no client has asked it: engines must see its socket");
	status.fetches = 9;
	wrong(&status, "the prompts do not come again");
	status.recomputed_pages = 1;
	wrong(&status, "clients compute what it has");
}

TEST(writes_of_a_day_are_not_told_of_a_first_hour)
{
	struct kvt_store_status status = { .file_room_pages = 1000, .file_written_pages = 500,
					   .uptime_ns = 12000000000 };
	char text[80];

	assert_string_equal(kvt_store_wear_text(&status, text, sizeof(text)),
			    "0.5 times its size written in 12.0 s; a day's rate follows after an "
			    "hour");
	status.uptime_ns = HOUR_NS;
	assert_string_equal(kvt_store_wear_text(&status, text, sizeof(text)),
			    "12.0 times its size written a day");
}

TEST(a_store_without_a_daemon_is_wrong_at_once)
{
	struct kvt_store_status status = { .connected = 0 };

	wrong(&status, "it has no daemon");
}

TEST(a_store_whose_disk_failed_is_wrong_at_once)
{
	struct kvt_store_status status = status_of(0, 0);

	status.file_bad_slots = 2;
	wrong(&status, "the disk of its file failed (2 places lost)");
	status.file_closed = 1;
	wrong(&status, "the disk of its file fails, or is slow: it is closed for a while");
}

TEST(a_distributed_store_that_fails_is_named)
{
	struct kvt_store_status status = status_of(0, 0);

	status.helper_garbage = 1;
	wrong(&status, "the distributed store returns damaged pages");
	memcpy(status.helper_kind, "redis", 6);
	wrong(&status, "the distributed store (redis) returns damaged pages");
	status.helper_full = 1;
	wrong(&status, "the distributed store (redis) cannot write most pages");
}
