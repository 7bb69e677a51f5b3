# SPDX-License-Identifier: Apache-2.0
# T15: any number of chunked commits and then one normal: hits + 1 only. Seen through SLRU with
# threshold 2: one hit leaves an entry on probation, a second one would protect it.
echo "#daemon page_size=4 n_pages=64 policy=slru slru_threshold=2"
echo "a open"
echo "a s=begin keys=1..32"
for at in 4 8 12 16 20 24 28; do
	echo "a commit lease=s computed=$at chunked"
	echo "#= next=$at sealed=1"
done
echo "a commit lease=s computed=32"
echo "a end lease=s"
echo "#= cached=8"
# A younger entry with one hit of its own: if the first had two, the younger one would be evicted.
echo "a t=begin keys=101..104"
echo "a end lease=t computed=4"
echo "a evict n=8"
echo "#= evicted=8"
echo "a match keys=1..32"
echo "#= matched=0"
echo "a match keys=101..104"
echo "#= matched=4"
# The same with two normal ones protects.
echo "a u=begin keys=201..204"
echo "a end lease=u computed=4"
echo "a v=begin keys=201..204,9"
echo "#= reusable=4"
echo "a end lease=v"
echo "a w=begin keys=301..304"
echo "a end lease=w computed=4"
echo "a evict n=2"
echo "#= evicted=2"
echo "a match keys=201..204"
echo "#= matched=4"
echo "a match keys=301..304"
echo "#= matched=0"
