# SPDX-License-Identifier: Apache-2.0
#
# awk -f docs/functions.awk kvtrunk.3.in HEADER...: the manual page, with the functions that the
# headers declare, and their comments, in place of its line ".\" FUNCTIONS".

# For mdoc: a line a sentence.
function text(line) {
	gsub(/\\/, "\\e", line)
	gsub(/-E/, "\\-E", line)
	gsub(/[.] +/, ".\n", line)
	return (line ~ /^[.']/ ? "\\&" : "") line
}

# Lines of a comment. "@name text" is of an argument, with the indented lines that follow; other
# lines with four blanks are literal.
function describe(    i, line, kind, was, named, gap) {
	if (!n_lines)
		return
	print ".Bd -ragged -offset indent -compact"
	for (i = 1; i <= n_lines; i++) {
		line = lines[i]
		if (line ~ /^ *$/) {
			gap = 1
			continue
		}
		named = match(line, /^@[a-z_]+ +/)
		if (named || (was == "argument" && !gap && line ~ /^ /))
			kind = "argument"
		else
			kind = line ~ /^    / ? "literal" : "ragged"
		if ((kind == "literal") != (was == "literal"))
			print ".Ed\n.Bd -" (was == "literal" ? "ragged" : "literal") " -offset indent"
		else if (was != "" && (gap || named || kind != was || line ~ /^Errors/))
			print ".Pp"
		if (named) {
			printf ".Fa %s :\n", substr(line, 2, RLENGTH - 1)
			line = substr(line, RLENGTH + 1)
		}
		if (kind == "argument")
			sub(/^ +/, "", line)
		print kind == "literal" ? line : text(line)
		was = kind
		gap = 0
	}
	print ".Ed"
	n_lines = 0
}

# A declaration, with what stands behind it in its line.
function declare(declaration, note,    name, type, n, i, arguments) {
	gsub(/[ \t]+/, " ", declaration)
	match(declaration, /kvt_[a-z0-9_]+\(/)
	type = substr(declaration, 1, RSTART - 1)
	name = substr(declaration, RSTART, RLENGTH - 1)
	sub(/ +$/, "", type)
	declaration = substr(declaration, RSTART + RLENGTH)
	sub(/\);$/, "", declaration)
	printf ".Pp\n.Ft \"%s\"\n.Fn %s", type, name
	n = split(declaration, arguments, /, */)
	for (i = 1; i <= n; i++)
		printf " \"%s\"", arguments[i]
	print ""
	if (note != "")
		printf ".Bd -ragged -offset indent -compact\n%s\n.Ed\n", text(note)
}

# The comment, and the declarations that it stands in front of.
function flush(    i) {
	if (n_lines && notes[1] != "" && n_declarations) {
		lines[++n_lines] = ""
		lines[++n_lines] = notes[1]
	}
	for (i = 1; i <= n_declarations; i++) {
		if (i > 1 && notes[i] != "")
			describe()
		declare(declarations[i], i > 1 || !n_lines ? notes[i] : "")
	}
	if (n_declarations)
		describe()
	n_lines = n_declarations = 0
}

FILENAME ~ /\.in$/ {
	if (!behind && $0 == ".\\\" FUNCTIONS")
		behind = 1
	else if (behind)
		rest = rest $0 "\n"
	else
		print
	next
}
FNR == 1 {
	flush()
	sub(/.*\//, "", FILENAME)
	header = FILENAME
}
/^\/\*\*/ {
	flush()
	comment = 1
	sub(/^\/\*\* ?/, "")
}
comment {
	comment = !sub(/ *\*\/ *$/, "")
	sub(/^ \* ?/, "")
	if (/^@file/)
		of_file = 1
	else if (NF || n_lines)
		lines[++n_lines] = $0
	if (!comment && of_file) {
		printf ".Ss %s\n", header
		describe()
		of_file = 0
	}
	next
}
/^[a-z].* \*?kvt_[a-z0-9_]+\(/ && !/^(static|typedef)/ { declaration = "" ; open = 1 }
open {
	note = ""
	if (match($0, / *\/\* .* \*\/$/)) {
		note = substr($0, RSTART, RLENGTH)
		gsub(/^ *\/\* | \*\/$/, "", note)
		$0 = substr($0, 1, RSTART - 1)
	}
	sub(/^[ \t]+/, " ")
	declaration = declaration $0
	if (/;$/) {
		declarations[++n_declarations] = declaration
		notes[n_declarations] = note
		open = 0
	}
	next
}
{ flush() }
END {
	flush()
	printf "%s", rest
}
