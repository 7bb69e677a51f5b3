# SPDX-License-Identifier: Apache-2.0
# T23: MATCH in 100 unknown namespaces makes no root.
echo "#daemon page_size=4 n_pages=64"
echo "a open"
for i in $(seq 100); do
	echo "a match ns=unknown$i keys=1..8"
	echo "#= matched=0"
done
echo "a stats"
# The value is checked inside the kept answer: no node is alive at all.
echo "#= counters.live_nodes=0 counters.live_namespaces=100"
