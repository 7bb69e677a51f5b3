# SPDX-License-Identifier: Apache-2.0
# T21: 10,000 sequences of 10,000 common positions and 100 of their own: the common ones are stored
# once. Page 4; each continues at the handle of the common prefix. Argument: fewer sequences.
n=${1:-10000}
echo "#daemon page_size=4 n_pages=$((2600 + 25 * n))"
echo "a open"
echo "a x=alloc n=2500"
echo "a common=insert keys=1..10000 pages=x"
echo "#= inserted=2500 cached=2500"
awk -v n="$n" 'BEGIN {
	for (i = 0; i < n; i++) {
		first = 100000 + 100 * i
		print "a y=alloc n=25"
		printf "a insert handle=common keys=%d..%d pages=y\n", first, first + 99
		printf "#= existed=10000 inserted=25 twins=[] cached=%d\n", 2500 + 25 * (i + 1)
	}
	for (i = 0; i < n; i += 999) {
		first = 100000 + 100 * i
		printf "a match keys=1..10000,%d..%d\n", first, first + 99
		print "#= matched=10100"
	}
}'
echo "a stats"
pages=$((2500 + 25 * n))
echo "#= counters.cached_pages=$pages counters.inserted_pages=$pages"
echo "#= counters.live_nodes<=$((n + 100))"
