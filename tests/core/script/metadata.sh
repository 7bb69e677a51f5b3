#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# After T21: the tree's shared memory stays within the promised bytes: at most 5.5 for each position
# of the pool at page 64 and 1 Mi positions or more. A position's key alone is 4.
set -u
failed=0
for pages in 16385 65537; do
	coproc script { exec "$O/kvtlab" script --daemon \
		"page_size=64 n_pages=$pages page_bytes=64 hugepages=no" -; }
	script_pid=$script_PID
	exec 3>&"${script[1]}" 4<&"${script[0]}"
	eval "exec ${script[1]}>&- ${script[0]}<&-"
	echo "a open" >&3
	read -r answer <&4 || exit 1
	socket=$(sed 's/.*"socket":"\([^"]*\)".*/\1/' <<<"$answer")
	bytes=$("$O/kvtctl" --socket "$socket" --json status |
		sed 's/.*"arena_bytes":\([0-9]*\).*/\1/')
	exec 3>&- 4<&-
	wait "$script_pid" || failed=1
	echo "$pages pages of 64: $bytes bytes of arena," \
		"$(awk "BEGIN { printf \"%.2f\", $bytes / $pages / 64 }") a position"
	awk "BEGIN { exit !($bytes / $pages / 64 <= 5.5) }" || failed=1
done
exit $failed
