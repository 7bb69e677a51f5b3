/* SPDX-License-Identifier: Apache-2.0 */
/* When a line of progress may be printed. */
#include "base/progress.h"
#include "tests/lib/cases.h"

#define SECOND 1000000000ll

TEST(short_work_prints_nothing_and_eager_work_its_first_line_at_once)
{
	struct kvt_progress_line line;

	kvt_progress_begin(&line, false);
	assert_int_equal(line.due_ns - line.start_ns, 2 * SECOND);
	kvt_progress_begin(&line, true);
	assert_true(kvt_progress_due(&line));
	assert_true(line.due_ns - line.start_ns >= line.every_ns);
}
