/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SCAN_H
#define KVT_STORE_SCAN_H

/**
 * @file scan.h
 * Looks at each entry of a large array for those that must be judged together, a part at a time: in
 * between the lock of the array is free. An entry that is changed while a scan is open is noted
 * then. So in the end all that matter are known, and one short step judges them as they are.
 */

#include <stdbool.h>
#include <stdint.h>

#define KVT_SCAN_LOOKS 16384u /* at once: less than a millisecond */

struct kvt_scan {
	uint64_t *bits; /* one for each entry that must be judged; NULL: no memory, all are */
	uint32_t n, at; /* entries [1, n]; [1, at) were looked at */
	struct kvt_scan *next; /* that is open, too */
};

/** Open a scan of the entries [1, n]. `open`: those of the array. */
void kvt_scan_open(struct kvt_scan **open, struct kvt_scan *scan, uint32_t n);
void kvt_scan_close(struct kvt_scan **open, struct kvt_scan *scan);
/** Take the next entry to look at. `*looks`: 0 before the first one. 0: as many as may be at once
 * were looked at, or all. */
uint32_t kvt_scan_look(struct kvt_scan *scan, uint32_t *looks);
/** Return true if all entries were looked at. */
bool kvt_scan_is_done(const struct kvt_scan *scan);
/** Have an entry judged. */
void kvt_scan_add(const struct kvt_scan *scan, uint32_t entry);
/** The same in all open scans, for an entry that changes. */
void kvt_scan_note(const struct kvt_scan *open, uint32_t entry);
/** Return the next entry behind one, or behind 0, that must be judged. 0: there is none. */
uint32_t kvt_scan_next(const struct kvt_scan *scan, uint32_t entry);

#endif
