# SPDX-License-Identifier: Apache-2.0
# bash completion for kvtlab
_kvtlab() {
	local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=""
	case $previous in
	--socket | --svg | --log | --served | --write-trace | --daemon)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return ;;
	--policy) words="lru slru lfu fifo filo mru priority" ;;
	--format) words="mooncake agent jsonl generate any" ;;
	esac
	if [ -n "$words" ]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
		return
	fi
	if [ "$COMP_CWORD" = 1 ]; then
		words="script replay analyze verify chaos bench help --help --version"
	else
		case ${COMP_WORDS[1]} in
		script) words="--socket --daemon --help" ;;
		replay) words="--format --block-size --workers --socket --daemon --pages --page-size
			--page-bytes --policy --disabled --store --instances --private-stores --log --requests --users --context --sessions
			--seed --namespaces --chunk --concurrency --time-scale --lockstep --force-miss
			--kill --coalesce --bursts --prefill-rate --sides --points-every --points-all
			--points-drop --served --write-trace --no-verify
			--no-private --json --quiet --progress --help --help-all" ;;
		analyze) words="--format --block-size --requests --users --context --sessions --bursts
			--seed --page-size --concurrency --pages --socket --namespace --svg --json
			--quiet --help" ;;
		verify) words="--json --help" ;;
		chaos) words="--seconds --seed --workers --pages --sides --store --keep --help" ;;
		bench) words="attn restart --help" ;;
		esac
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
	[[ $COMP_CWORD = 1 || $word == -* ]] ||
		mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word")
}
complete -F _kvtlab kvtlab
