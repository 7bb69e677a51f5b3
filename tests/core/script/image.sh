# SPDX-License-Identifier: Apache-2.0
# image PAGE_SIZE: one long image scenario. text1 100 positions, image1 1,024, image2 768, image3
# 896; req1 = text1+image1+image2, req2 = req3 = text1+image1+image3.
ps=$1
down() { echo $(($1 / ps * ps)); }
text1=1..100
image1=3221226496..3221227519
image2=3222000000..3222000767
image3=3223000000..3223000895
req1=$text1,$image1,$image2
req3=$text1,$image1,$image3
shared=$(down 1124)
echo "#daemon page_size=$ps n_pages=9000"
for s in a b c; do echo "$s open"; done
echo "# 1. req1 alone: chunks of 512; another request would hit 0, 512, 1,024, 1,536."
echo "a r=begin keys=$req1"
echo "#= matched=0 pages.n=$(((1892 + ps - 1) / ps))"
for computed in 0 512 1024; do
	[ $computed = 0 ] || echo "a commit lease=r computed=$computed chunked"
	echo "b match keys=$req1"
	echo "#= matched=$computed announced=$(($(down 1892) - computed))"
done
echo "# 3. req3 begins when req1 has committed 1,024: it hits them at once."
echo "c t=begin keys=$req3"
echo "#= matched=1024 reusable=1024 announced=$((shared - 1024))"
echo "a commit lease=r computed=1536 chunked"
echo "b match keys=$req1"
echo "#= matched=1536"
echo "# A commit of req3 with nothing of its own looks on."
echo "c commit lease=t computed=1024 chunked"
echo "#= next=$shared advanced=$((shared - 1024)) sealed=0"
echo "a commit lease=r computed=1892"
echo "#= next=1892"
echo "a end lease=r"
echo "c commit lease=t computed=2020"
echo "#= next=2020 advanced=0"
echo "c end lease=t"
echo "#= private=0 protected=0"
echo "# 2. req2 afterwards, here on a tree without req3's own part."
echo "b remove keys=$text1,$image1,3223000000..$((3223000000 + shared + ps - 1124 - 1))"
echo "#= removed=true"
echo "b q=begin keys=$req3"
echo "#= matched=$shared reusable=$shared"
echo "b end lease=q computed=2020"
echo "#= private=0 protected=0"
echo "# 4. One trunk of 1,124 and two branches, all locks 0: three nodes and the root."
echo "b stats"
echo "#= counters.live_leases=0 counters.locked_nodes=0 counters.live_nodes=4"
echo "b match keys=$req1"
echo "#= matched=$(down 1892)"
echo "b match keys=$req3"
echo "#= matched=$(down 2020)"
