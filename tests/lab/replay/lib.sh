# SPDX-License-Identifier: Apache-2.0
# For the replay tests: run kvtlab replay --json and check its output.

set -u
kvtctl=$O/kvtctl
kvtlab=$O/kvtlab
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { echo "FAILED: $*"; [ -e "$work/json" ] && cat "$work/json"; exit 1; }

# data NAME: the path of a published trace; ends the test if it is missing.
data() {
	local file=${KVT_DATA:-../shared/data}/$1
	[ -r "$file" ] || { echo "skip: no $file (set KVT_DATA)" >&2; exit 77; }
	echo "$file"
}

# replay OPTION...: must succeed.
replay() {
	"$kvtlab" replay "$@" --json >"$work/json" || die "kvtlab replay $* ended with $?"
}

# field NAME: the value of a top-level member.
field() { grep -o "\"$1\":[^,}]*" "$work/json" | head -n 1 | cut -d: -f2; }

# is NAME VALUE
is() { [ "$(field "$1")" = "$2" ] || die "$1 is $(field "$1") and not $2"; }

# above NAME VALUE
above() { awk "BEGIN { exit !($(field "$1") > $2) }" || die "$1 is $(field "$1"), not above $2"; }

# True for every replay.
sound() {
	is audit_clean true
	is pattern_errors 0
	is workers_failed 0
	above verified_pages 0
}
