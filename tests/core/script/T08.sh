# SPDX-License-Identifier: Apache-2.0
# T8 PAGE_SIZE: a query of the sequence and (page - 1) more; one shorter than a page.
ps=$1
cat <<END
#daemon page_size=$ps n_pages=64
a open
a x=alloc n=3
a insert keys=1..$((3 * ps)) pages=x
a match keys=1..$((4 * ps - 1))
#= matched=$((3 * ps))
a match keys=1..$((ps - 1))
#= matched=0 ok=true
a match keys=
#= matched=0 ok=true
a begin keys=1..$((ps - 1))
#= matched=0 reusable=0 pages.n=1
a insert keys=1..$((ps - 1)) pages=
#= existed=0 inserted=0 ok=true
END
