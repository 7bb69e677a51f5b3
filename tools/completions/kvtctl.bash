# SPDX-License-Identifier: Apache-2.0
# bash completion for kvtctl
_kvtctl() {
	local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command="" i
	local commands="status pid config metrics top clients namespaces tree page audit evict remove reset
		fence script replay verify help version"
	for ((i = 1; i < COMP_CWORD; i++)); do
		case " ${commands//[$'\n\t']/ } " in *" ${COMP_WORDS[i]} "*) command=${COMP_WORDS[i]} ;; esac
	done
	case $previous in
	--socket | --log | --served | --write-trace | --daemon)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return ;;
	--policy)
		mapfile -t COMPREPLY < <(compgen -W "lru slru lfu fifo filo mru priority" -- "$word")
		return ;;
	--format)
		mapfile -t COMPREPLY < <(compgen -W "mooncake agent jsonl generate" -- "$word")
		return ;;
	esac
	case $command in
	"") mapfile -t COMPREPLY < <(compgen -W "$commands --socket --timeout --json --help
			--version" -- "$word") ;;
	tree) mapfile -t COMPREPLY < <(compgen -W "--lines --depth --namespace --json" -- "$word") ;;
	top) mapfile -t COMPREPLY < <(compgen -W "--once --lines --interval-ms" -- "$word") ;;
	help) mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word") ;;
	remove) mapfile -t COMPREPLY < <(compgen -W "--keys" -- "$word") ;;
	replay)
		mapfile -t COMPREPLY < <(compgen -W "--format --workers --socket --start-daemon --daemon
			--pages --page-size --page-bytes --policy --disabled --log --requests --users
			--context --sessions --seed --namespaces --chunk --concurrency --time-scale
			--lockstep --force-miss --kill --served --write-trace --no-verify --no-private
			--json --quiet --progress" -- "$word")
		[[ $word == -* ]] || mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word") ;;
	script | verify) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
	esac
}
complete -F _kvtctl kvtctl
