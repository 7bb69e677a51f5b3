#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make deb: the Debian packages, built in $O/deb from a copy of the sources. DEB_PREBUILT=yes packs
# what is built in $O already, with the flags of that build: for tests.
set -eu
cd "$(dirname "$0")/.."
O=$(realpath -m "${O:-build}")
changelog=$(sed -n '1s/^kvtrunk (\(.*\)) .*/\1/p' debian/changelog)
[ "$changelog" = "$VERSION" ] ||
	{ echo "debian/changelog is for $changelog, the Makefile for $VERSION" >&2; exit 1; }
needs=""
for pair in dpkg-buildpackage:build-essential dh:debhelper fakeroot:fakeroot; do
	command -v "${pair%:*}" >/dev/null || needs+=" ${pair#*:}"
done
# Its answer: ... Unmet build dependencies: build-essential:native debhelper-compat (= 13) ...
needs+=$(dpkg-checkbuilddeps debian/control 2>&1 | sed -n 's/.*Unmet build dependencies://p' |
	sed 's/ ([^)]*)//g; s/:native//g; s/debhelper-compat/debhelper/')
if [ -n "$needs" ]; then
	needs=$(printf '%s\n' $needs | sort -u | paste -sd ' ')
	echo "make deb needs more packages: apt-get install $needs" >&2
	exit 1
fi
if [ -n "${DEB_PREBUILT:-}" ]; then
	make --no-print-directory -s O="$O" NVCC=none installables >&2
	export KVT_PREBUILT="$O"
fi
rm -rf "$O/deb"
mkdir -p "$O/deb/kvtrunk-$VERSION"
{ git ls-files -co --exclude-standard -z 2>/dev/null ||
	find . -path ./build -prune -o -type f -print0; } |
	while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
	tar -c --null -T - | tar -x -C "$O/deb/kvtrunk-$VERSION"
cd "$O/deb/kvtrunk-$VERSION"
echo "make deb: building the packages takes some minutes; $O/deb/log has what is done" >&2
while sleep 10; do
	echo "make deb: $SECONDS s, at: $(tail -n 1 "$O/deb/log" 2>/dev/null | cut -c 1-70)" >&2
done &
trap 'kill '$!' 2>/dev/null' EXIT
# Nothing of the make that called: packages are the same wherever they are built.
if ! env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u O -u CC -u VERSION \
	DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-parallel=2}" \
	dpkg-buildpackage --build=binary -us -uc >"$O/deb/log" 2>&1; then
	tail -n 40 "$O/deb/log" >&2
	exit 1
fi
rm -rf "$O/deb/kvtrunk-$VERSION"
cd "$O/deb"
ls -1 ./*.deb
