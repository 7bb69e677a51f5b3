# SPDX-License-Identifier: Apache-2.0
#
# One file's style. Variables: file, kind (c, make, py, sh, web, text).
#
# Functions are recognised by the project's layout: the opening brace of a body and its closing
# brace are alone in column 1.

function finding(text) { printf "%s:%d: %s\n", file, FNR, text }

# Columns of a line with tabs to 8, counting UTF-8 characters once (mawk counts bytes).
function columns(line,    i, c, n) {
	if (index(line, "\t") == 0 && length(line) <= 100)
		return length(line)
	n = 0
	for (i = 1; i <= length(line); i++) {
		c = substr(line, i, 1)
		if (c == "\t")
			n += 8 - n % 8
		else if (!(c in continuation))
			n++
	}
	return n
}

# The longest name of a floor (tests/floors.txt) that this path is on.
function floor_of(path,    floor, longest) {
	for (floor in floors)
		if (index(path "/", floor "/") == 1 && length(floor) > length(longest))
			longest = floor
	return longest
}

# A source may include its own floor, and the floors under it.
function may_include(what,    on, own) {
	if (what !~ /\//) # beside the file that includes it, or in include/
		return 1
	own = floor_of(file)
	on = floor_of(what)
	return own == "" || own == on || index(floors[own], " " on " ") || \
		index(floors[own], " " what " ")
}

BEGIN {
	while ((getline row < "tests/floors.txt") > 0)
		if (split(row, word, " ") > 1 && word[1] == "floor")
			floors[word[2]] = substr(row, length("floor " word[2]) + 1) " "
	for (i = 128; i < 192; i++)
		continuation[sprintf("%c", i)] = 1
	is_header = file ~ /\.h$/
	most = kind == "py" ? 104 : 100
	forbidden = "(^|[^A-Za-z-])(TODO|FIXME|XXX|HACK)([^A-Za-z]|$)"
}

FNR == 1 && kind == "c" && $0 != "/* SPDX-License-Identifier: Apache-2.0 */" {
	finding("the first line must be /* SPDX-License-Identifier: Apache-2.0 */")
}
FNR <= 2 && /SPDX-License-Identifier: Apache-2.0/ { has_licence = 1 }

kind != "text" && columns($0) > most { finding("longer than " most " columns") }
/[ \t]+$/ && kind != "text" { finding("white space at the end of the line") }
/\r$/ { finding("carriage return") }
$0 ~ forbidden && file !~ /^tests\/tidy/ { finding("unfinished: " $0) }

kind == "c" && /^ +[^ *]/ && !in_comment && !in_string_macro { finding("indent with tabs") }
kind == "c" && /\/\*/ { in_comment = 1 }
kind == "c" && /\*\// { in_comment = 0 }

kind == "c" && /^[ \t]*typedef[ \t]+(struct|union|enum)/ { finding("no typedef of structs") }
kind == "c" && /__atomic_|__sync_|_Atomic|stdatomic\.h|memory_order_/ && file !~ /^(shm|kernels)\// &&
		!/^[ \t]*(\*|\/\*|\/\/)/ {
	finding("raw atomics belong into shm/atomic.h")
}
kind == "c" && /^#[ \t]*include[ \t]*"/ {
	what = $0
	sub(/^[^"]*"/, "", what)
	sub(/".*/, "", what)
	if (!may_include(what))
		finding("includes a floor above its own: " what)
}
kind == "c" && /^#[ \t]*(ifndef|pragma once)/ && !guard { guard = FNR }
kind == "c" && file !~ /^(tests|bench|tools|lab|examples)\// &&
		/(^|[^_a-z])(strcpy|strcat|sprintf|gets|strtok|alloca)\(/ {
	finding("a function that cannot be used safely")
}
kind == "c" && /(^|[^_a-z])(u?sleep|nanosleep)\(/ && file ~ /^tests\// {
	finding("tests wait for the event itself, not for time")
}

# Bodies of functions.
kind == "c" && /^\{$/ { body = FNR }
kind == "c" && /^\}$/ && body {
	if (FNR - body - 1 > 70)
		finding("function of " (FNR - body - 1) " lines, 70 are allowed")
	body = 0
}

# Functions of Python, without their text: what is indented further, up to the last line of it.
kind == "py" && /^ *\t/ && !text { finding("indent with spaces") }
kind == "py" {
	quotes = gsub(/"""/, "&")
	in_text = text || quotes
	if (quotes % 2)
		text = !text
	match($0, /^ */)
	if (!in_text && NF && RLENGTH <= indent && !/^ *[\])]/)
		indent = -1
	if (/^ *(async )?def / && indent < 0) {
		indent = RLENGTH
		lines = 0
	} else if (indent >= 0 && !in_text && NF && ++lines == 71) {
		finding("function of more than 70 lines")
	}
}

# A module imports its own package, and those under it: from ..engine import _flags.
kind == "py" && file ~ /^python\// && /^ *(from|import) / && !in_text {
	what = $2
	if (what ~ /^\./) {
		folder = file
		sub(/\/[^\/]*$/, "", folder)
		for (what = substr(what, 2); what ~ /^\./; what = substr(what, 2))
			sub(/\/[^\/]*$/, "", folder)
		what = folder "." what
	}
	gsub(/\./, "/", what)
	sub(/^kvtrunk/, "python/kvtrunk", what)
	if (what ~ /^python/ && !may_include(what "/"))
		finding("imports a floor above its own: " $2)
}

# Public functions follow a comment, or another function of the same comment.
kind == "c" && file ~ /^include\/kvtrunk_(client|pool|group|operations|sequences)\.h$/ {
	if (/^[a-z][a-z0-9_ ]* \*?kvt_[a-z0-9_]+\(/ && !documented)
		finding("a public function without a comment")
	if (/^\/\*\*|^ \*|\*\//)
		documented = 1
	else if (/^$/)
		documented = 0
}

END {
	if (kind == "c" && is_header && !guard && file !~ /\.inc\.h$/)
		finding("a header needs an include guard")
	if (kind ~ /^(make|py|sh|web)$/ && !has_licence)
		finding("SPDX line missing")
}
