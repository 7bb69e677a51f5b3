#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The benchmark runs to its end and prints all promised figures, which are not judged here. The
# flat-versus-radix table must be as published.
. "$(dirname "$0")/lib.sh"

"$O/kvtbench" flat-radix || die "flat against radix"
"$O/kvtbench" --core --quick --tree fresh match cycle arena >"$work/out" || die "kvtbench --core"
for name in match_lock unlock cycle arena_bytes_per_position aim; do
	grep -q "^{\"name\":\"$name\"," "$work/out" || die "no $name"
done
grep '"name":"match_lock"' "$work/out" | grep -qv '"floor_p50_ns"' && die "a figure without floor"
echo ok
