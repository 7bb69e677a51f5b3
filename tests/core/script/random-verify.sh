#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# random-verify.sh SEED...: random scripts of four processes against a real daemon. The oracle must
# reproduce its operation log: every result, victim and counter. Another eviction policy with each
# seed.
set -u
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
policies=(lru slru lfu fifo filo mru priority)
failed=0
for seed in "$@"; do
	policy=${policies[$((seed % 7))]}
	script=$directory/script answers=$directory/answers log=$directory/log
	sh tests/core/script/random.sh "$seed" 3000 "policy=$policy" >"$script" || exit 1
	options="page_bytes=64 test_clock=yes hugepages=no log_file=$log"
	options="$options $(sed -n 's/^#daemon //p' "$script")"
	if ! "$O/kvtlab" script --daemon "$options" "$script" >"$answers"; then
		echo "seed $seed, $policy: the script tool failed"
		grep EPARSE "$answers" | head -n 3
		failed=1
	fi
	echo "seed $seed, $policy: $(grep -c '"ok":true' "$answers") done," \
		"$(grep -c '"ok":false' "$answers") refused, $(grep -c async "$answers") waited"
	if ! "$O/kvtlab" verify "$log"; then
		echo "seed $seed, $policy: the oracle disagrees"
		failed=1
	fi
	rm -f "$log"
done
exit $failed
