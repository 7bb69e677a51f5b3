#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Chats and one-off prompts in turns, beside a file whose disk takes 30 MiB a second: a part of what
# is computed. With a budget and without, it finds no less than memory alone.
. "$(dirname "$0")/lib.sh"

file=$(data mooncake_conversation.jsonl.gz) || exit $?
skip() { echo "skip: $*" >&2; exit 77; }
bytes=$((30 << 20))
disk=$(findmnt -nro MAJ:MIN -T /var/tmp) || skip "no disk is known of /var/tmp"
[ -e "/sys/dev/block/$disk" ] || skip "/var/tmp is on no disk"
[ ! -e "/sys/dev/block/$disk/partition" ] || disk=$(cat "/sys/dev/block/$disk/../dev")
if [ -d /sys/fs/cgroup/blkio ]; then
	group=/sys/fs/cgroup/blkio/kvt-slow.$$
else
	group=/sys/fs/cgroup/kvt-slow.$$
fi
mkdir "$group" 2>/dev/null || skip "only root can slow a disk, by a cgroup"
trap 'rmdir "$group"; rm -rf "$work"' EXIT
if [ -e "$group/io.max" ]; then
	echo "$disk rbps=$bytes wbps=$bytes" >"$group/io.max" || skip "a cgroup does not slow $disk"
else
	for way in read write; do
		echo "$disk $bytes" >"$group/blkio.throttle.${way}_bps_device" ||
			skip "a cgroup does not slow $disk"
	done
fi

tests/lab/replay/mix.py "$file" 2000 >"$work/mix"
# beside OPTION...: the hit rate with a pool of 1 Mi positions and 2 Mi in memory.
beside() {
	(echo "$BASHPID" >"$group/cgroup.procs" &&
		replay --format mooncake "$work/mix" --workers 2 --concurrency 4 --no-private \
			--prefill-rate 2000000 --pages 16385 --store 32768 "$@") || exit 1
	sound
	hits=$(field hit_rate)
	echo "$hits with ${*:-memory alone}: $(field file_written_pages) pages are written"
}
beside
alone=$hits
for budget in "" 20000000; do
	beside --store-file 524288 ${budget:+--store-write-bytes "$budget"}
	above file_dropped_pages 0
	[ -z "$budget" ] || above file_budget_dropped_pages 0
	awk "BEGIN { exit !($hits >= $alone) }" || die "a slow disk costs hits"
done
echo ok
