# SPDX-License-Identifier: Apache-2.0
# T22 SEED: 1,000 sequences at random in 10 namespaces, then evict all: 0 nodes, 0 roots, every
# page free. Small alphabets make them share and split.
echo "#daemon page_size=2 n_pages=9000"
echo "a open"
awk -v seed="$1" 'BEGIN {
	srand(seed)
	for (i = 0; i < 1000; i++) {
		n = 1 + int(rand() * 40)
		keys = ""
		for (j = 0; j < n; j++)
			keys = keys (j ? "," : "") int(rand() * 3)
		printf "a s=begin ns=n%d keys=%s\n#= ok=true\n", int(rand() * 10), keys
		printf "a end lease=s computed=%d\n#= ok=true private=0\n", n
	}
}'
echo "a evict n=100000"
echo "#= evicted>0 cached=0 free=8999 evictable=0"
echo "a stats"
echo "#= counters.live_nodes=0 counters.cached_pages=0 counters.live_leases=0"
