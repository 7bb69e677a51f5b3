# SPDX-License-Identifier: Apache-2.0
#
# Shared by tests of the example worker: a daemon for a model, checks by name, JSON fields. Set
# `model` (the worker's flags for it) before start; daemon_flags and worker_flags if needed. With
# DEVICE=cuda all computing is on the device. With STANDINS the worker may be one whose kernels only
# a stand-in for the driver has.
O=$(realpath -m "${O:-build}")
home=${home:-examples/worker/model}
program=$O/tests/kernels/worker/worker
[ -n "${STANDINS:-}" ] && [ -x "$program" ] || program=$O/worker
computes_on() { [ -x "$program" ] && "$program" --devices | grep -qw "$1"; }
if [ -z "${DEVICE:-}" ] && ! computes_on cpu; then
	echo "skip: worker is not built for the CPU (it needs libopenblas-dev)"
	exit 77
fi
if [ -n "${DEVICE:-}" ] && ! computes_on "$DEVICE"; then
	echo "skip: worker is not built for $DEVICE (it needs nvcc)"
	exit 77
fi

dir=$(mktemp -d)
daemon=""
failures=0
stop() { [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; daemon=""; } 2>/dev/null; }
trap 'stop; rm -rf "$dir"' EXIT

check() { # what, then a command
	local what=$1
	shift
	if "$@"; then echo "[       OK ] $what"; else echo "[  FAILED  ] $what"; failures=1; fi
}

worker() { "$program" $model ${worker_flags:-} --socket "$dir/s" "$@"; }

start() { # pages
	# shellcheck disable=SC2046
	"$O/kvtrunkd" --instance="worker-$$" --socket_path="$dir/s" --runtime_dir="$dir" \
		--n_pages="$1" ${daemon_flags:-} $(worker --geometry) 2>>"$dir/log" &
	daemon=$!
	until [ -S "$dir/s" ] && "$O/kvtctl" status --socket "$dir/s" >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || { cat "$dir/log"; exit 1; }
	done
}

field() { sed -n "s/.*\"$1\":\(\"\(\\\\.\|[^\"]\)*\"\|[0-9a-z.+-]*\).*/\1/p"; }

total() { field "$1" | awk '{ sum += $1 } END { print sum + 0 }'; }

texts() { # JSON of the worker -> one answer per line
	field text | sed 's/^"//; s/"$//; s/\\u000a$//'
}

spoil() { # the first pages of an empty daemon: the beginning of the first prompt
	local page
	for page in 1 2 3 4; do
		"$O/tests/kernels/worker/flip" "$dir/s" "$page" || return
	done
}
