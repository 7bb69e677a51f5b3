# SPDX-License-Identifier: Apache-2.0
#
# awk -f tests/floors.awk tests/floors.txt [FIGURES.md] INPUT: INPUT is the output of nm -A for all
# objects, and lines "source FILE" and "include FILE FILE". Prints
# - each circle of files that call each other, with a symbol for each call, and each file that the
#   table lists as part of one but is not;
# - each source that no figure draws, each drawn file that is gone, and each call and include that
#   leads up in a figure. A figure is a block of text: a folder, then its floors, the highest first.
#   A floor is indented by two spaces; further lines of it by more.

function folder(file) { sub(/\/[^\/]*$/, "", file); return file }

# The file that defines a symbol, as `user` sees it: programs may use the same name for different
# things. The nearest one: of the same folder, of a folder above, any.
function definition(symbol, user,    n, list, i, at) {
	n = split(defined[symbol], list, " ")
	for (at = folder(user); n > 1 && at != ""; at = at ~ /\// ? folder(at) : "")
		for (i = 1; i <= n; i++)
			if (index(list[i], at "/") == 1)
				return list[i]
	return list[1]
}

FILENAME ~ /floors\.txt$/ {
	if ($1 == "circle")
		known[$2] = 1
	next
}
FILENAME ~ /\.md$/ {
	if (/^```/)
		figure = ""
	else if (/^[a-z\/]+\/$/)
		figure = $1
	if (figure == "")
		next
	level += /^  [^ ]/
	for (i = 1; i <= NF; i++) {
		gsub(/[(),:]/, "", $i)
		if ($i !~ /\.(c|h|cu|cuh)$/)
			continue
		if (figure $i in drawn)
			print FILENAME ": " figure $i " is drawn twice"
		drawn[figure $i] = level
		figures = FILENAME
	}
	next
}
$1 == "source" { source[$2] = 1; next }
$1 == "include" { includes[$2 " " $3] = 1; next }
{
	file = $1
	sub(/\.o:.*/, ".c", file)
	symbol = $NF
	kind = $(NF - 1)
	if (kind == "U")
		uses[++n_uses] = file " " symbol
	else if (kind ~ /^[A-TV-Z]$/ && symbol != "main")
		defined[symbol] = defined[symbol] " " file
}

# True if `from` reaches `to` through the remaining files.
function reaches(from, to,    queue, head, tail, seen, file, i, n, list) {
	queue[tail = 1] = from
	for (head = 1; head <= tail; head++) {
		n = split(calls[queue[head]], list, " ")
		for (i = 1; i <= n; i++) {
			file = list[i]
			if (file == to)
				return 1
			if (!(file in seen)) {
				seen[file] = 1
				queue[++tail] = file
			}
		}
	}
	return 0
}

# A header is drawn with its .c file.
function has_source(file) { return sub(/\.h$/, ".c", file) && file in source }

function check_figures(    file, edge) {
	for (file in source)
		if (!(file in drawn) && !has_source(file))
			print file ": not drawn in " figures
	for (file in drawn)
		if (!(file in source))
			print figures ": there is no " file
	for (edge in through)
		if (leads_up(edge))
			print file_of[1] ": calls " file_of[2] ", drawn above it:" through[edge]
	for (edge in includes)
		if (leads_up(edge))
			print file_of[1] ": includes " file_of[2] ", drawn above it"
}
# True if both files are drawn in one figure, the second above the first. Sets file_of[].
function leads_up(edge) {
	split(edge, file_of, " ")
	return folder(file_of[1]) == folder(file_of[2]) && file_of[1] in drawn &&
		file_of[2] in drawn && drawn[file_of[2]] < drawn[file_of[1]]
}

END {
	for (u = 1; u <= n_uses; u++) {
		split(uses[u], word, " ")
		if (!(word[2] in defined))
			continue
		to = definition(word[2], word[1])
		edge = word[1] " " to
		if (to == word[1])
			continue
		if (!(edge in through))
			calls[word[1]] = calls[word[1]] " " to
		through[edge] = through[edge] " " word[2]
	}
	for (file in calls)
		if (reaches(file, file))
			circular[file] = 1
	for (file in circular)
		if (!(file in known))
			for (edge in through) {
				split(edge, word, " ")
				if (word[1] == file && word[2] in circular && reaches(word[2], file))
					print file ": in a circle: calls " word[2] ":" through[edge]
			}
	for (file in known)
		if (!(file in circular))
			print "tests/floors.txt: " file " is in no circle any more: take it out"
	if (figures != "")
		check_figures()
}
