# SPDX-License-Identifier: Apache-2.0
# bash completion for kvtctl
_kvtctl() {
	local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command="" i
	local commands="list ping status pid config metrics top clients namespaces tree page feed audit evict remove reset
		upgrade fence store geometry script replay verify help version"
	for ((i = 1; i < COMP_CWORD; i++)); do
		case " ${commands//[$'\n\t']/ } " in *" ${COMP_WORDS[i]} "*) command=${COMP_WORDS[i]} ;; esac
	done
	case $previous in
	--socket | --binary)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return ;;
	esac
	case $command in
	"") mapfile -t COMPREPLY < <(compgen -W "$commands --socket --timeout --json --help --help-all
			--version" -- "$word") ;;
	tree) mapfile -t COMPREPLY < <(compgen -W "--lines --depth --namespace --json" -- "$word") ;;
	top) mapfile -t COMPREPLY < <(compgen -W "--once --lines --interval-ms" -- "$word") ;;
	feed) mapfile -t COMPREPLY < <(compgen -W "--snapshot --json" -- "$word") ;;
	help) mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word") ;;
	upgrade) mapfile -t COMPREPLY < <(compgen -W "--binary" -- "$word") ;;
	remove) mapfile -t COMPREPLY < <(compgen -W "--all --keys --root-key" -- "$word") ;;
	store) mapfile -t COMPREPLY < <(compgen -W "status list drop --json" -- "$word") ;;
	geometry) mapfile -t COMPREPLY < <(compgen -W "--tensor-parallel --kv-type --page-size" -f -- "$word") ;;
	script | replay | verify) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
	esac
}
complete -F _kvtctl kvtctl
