# SPDX-License-Identifier: Apache-2.0
# image-regions: the long image scenario with bidirectional regions: no chunk ends inside an image,
# so chunks are cut at 100, 1,124 and 1,892.
image1=3221226496..3221227519
req1=1..100,$image1,3222000000..3222000767
req3=1..100,$image1,3223000000..3223000895
echo "#daemon page_size=1 n_pages=9000"
for s in a b c; do echo "$s open"; done
echo "a r=begin keys=$req1"
for computed in 0 100 1124; do
	[ $computed = 0 ] || echo "a commit lease=r computed=$computed chunked"
	echo "b match keys=$req1"
	echo "#= matched=$computed"
done
echo "c t=begin keys=$req3"
echo "#= matched=1124 reusable=1124 announced=0"
echo "a end lease=r computed=1892"
echo "c end lease=t computed=2020"
echo "#= private=0 protected=0 evictable=2788"
echo "b match keys=$req3"
echo "#= matched=2020"
echo "b stats"
echo "#= counters.live_nodes=4 counters.locked_nodes=0"
