# Completion for bash: the programs themselves say what may follow, so that this never differs from them.

_ravenstore() {
  local lines
  lines=$("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1) || return 0
  mapfile -t COMPREPLY < <(compgen -W "$lines" -- "$2")
}
complete -o default -F _ravenstore ravenctl ravensim ravenstored ravenstore-exporter

# Its own options, then the command.
_ravenrun() {
  case $3 in
    --mode) mapfile -t COMPREPLY < <(compgen -W "account store elastic" -- "$2") ;;
    --record | --log | --socket) ;;
    *)
      if [[ $2 == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$1" --help 2>/dev/null | grep -o -- '--[a-z]*' | sort -u)" -- "$2")
      elif ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$2")
      fi
      ;;
  esac
}
complete -o default -F _ravenrun ravenrun
