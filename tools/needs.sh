#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tools/needs.sh PART...: print the Debian packages without which a part cannot be built here.
#
# A library counts as installed if a program that uses it compiles and links with $CC (gcc). Its
# header alone proves nothing: the reference BLAS has a cblas.h, too. Parts: compiler,
# programs, metricsd, worker, tests. Prints nothing if all is there.
set -u
compiler=${CC:-gcc}

# part|package|library|expression of what is used|headers
table='compiler|libc6-dev||printf|stdio.h
programs|liburing-dev|uring|IORING_SETUP_DEFER_TASKRUN ? io_uring_queue_init : 0|liburing.h
programs|libbsd-dev|bsd|setproctitle|bsd/unistd.h
programs|libjansson-dev|jansson|json_loads|jansson.h
programs|libinih-dev|inih|ini_parse_stream|ini.h
programs|zlib1g-dev|z|gzopen|zlib.h
metricsd|libmicrohttpd-dev|microhttpd|MHD_start_daemon|microhttpd.h
worker|libopenblas-dev|openblas|({ char *openblas_get_config(void); openblas_get_config; })|cblas.h
tests|libcmocka-dev|cmocka|_cmocka_run_group_tests|stdarg.h stddef.h setjmp.h stdint.h cmocka.h'

source_of() { # rows of the table: a program that uses what they name
	echo "const void *volatile sink;"
	printf '%s\n' "$1" | cut -d '|' -f 5 | tr ' ' '\n' | sed 's/.*/#include <&>/'
	echo "int main(void) {"
	printf '%s\n' "$1" | cut -d '|' -f 4 | sed 's/.*/	sink = (const void *)(&);/'
	echo "	return !sink; }"
}

links() { # rows of the table: whether that program compiles and links
	# shellcheck disable=SC2046,SC2086 # $CC may bring flags
	source_of "$1" | $compiler -w -D_GNU_SOURCE -xc - -o /dev/null \
		$(printf '%s\n' "$1" | cut -d '|' -f 3 | sed 's/./-l&/') >/dev/null 2>&1
}

rows=""
for part in "$@"; do
	found=$(printf '%s\n' "$table" | grep "^$part|") ||
		{ echo "tools/needs.sh: no part '$part'" >&2; exit 2; }
	rows="$rows${rows:+
}$found"
done
links "$rows" && exit 0
command -v "${compiler%% *}" >/dev/null 2>&1 || case " $* " in *" compiler "*) echo gcc ;; esac
printf '%s\n' "$rows" | while IFS= read -r row; do
	links "$row" || printf '%s\n' "$row" | cut -d '|' -f 2
done
