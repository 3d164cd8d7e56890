# shellcheck shell=bash disable=SC2004,SC2034 # given is the caller's, and not numbered
# What options of sbatch say, in every form that sbatch takes:
#
#   --chdir=FOLDER   --chdir FOLDER   --chd FOLDER   -D FOLDER   -DFOLDER   -HD FOLDER
#
# read_options ARRAY WORDS... stops where sbatch does, at the first word that is neither an option nor the value of one.

sbatch_values=' account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
  container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
  distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
  gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
  mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
  ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
  reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind
  tres-per-task uid wait-all-nodes wckey wrap '
sbatch_flags=' contiguous exclusive get-user-env help hold ignore-pbs nice no-kill no-requeue oom-kill-step overcommit
  oversubscribe parsable propagate quiet reboot requeue resv-ports share spread-job test-only usage use-min-nodes
  verbose version wait ' # some take a value, behind = alone
declare -A sbatch_letters=([a]=array [A]=account [b]=begin [B]=extra-node-info [c]=cpus-per-task [C]=constraint
  [d]=dependency [D]=chdir [e]=error [F]=nodefile [G]=gpus [i]=input [J]=job-name [L]=licenses [m]=distribution
  [M]=clusters [n]=ntasks [N]=nodes [o]=output [p]=partition [q]=qos [S]=core-spec [t]=time [w]=nodelist [x]=exclude
  [h]=help [H]=hold [k]=no-kill [O]=overcommit [Q]=quiet [s]=oversubscribe [v]=verbose [V]=version [W]=wait)

read_options() { # ARRAY WORDS...: adds values to it by the options' long names, and sets num_read, the words of options
  local -n given=$1
  local word name
  shift
  num_read=0
  while (($#)); do
    word=$1
    case $word in
      --) shift && num_read=$((num_read + 1)) && return ;;
      :) ;; # between the parts of a heterogeneous job
      --*=*) given[$(long_name "${word%%=*}")]=${word#*=} ;;
      --*)
        name=$(long_name "$word")
        given[$name]=''
        if takes_value "$name" "${2:-}" && (($# > 1)); then
          given[$name]=$2
          shift && num_read=$((num_read + 1))
        fi
        ;;
      -?*)
        read_letters "${word#-}" "$@"
        [[ -z "$took_next" ]] || { shift && num_read=$((num_read + 1)); }
        ;;
      *) return 0 ;;
    esac
    shift && num_read=$((num_read + 1))
  done
}

read_letters() { # LETTERS WORD [NEXT]...: sets given, and took_next where NEXT is the value of the last letter
  local letters=$1 name
  took_next=''
  while [[ -n "$letters" ]]; do
    name=${sbatch_letters[${letters:0:1}]:--${letters:0:1}}
    letters=${letters:1}
    given[$name]=''
    if [[ "$sbatch_values" == *[[:space:]]"$name"[[:space:]]* ]]; then
      given[$name]=$letters
      if [[ -z "$letters" ]] && (($# > 2)); then
        given[$name]=$3
        took_next=yes
      fi
      return
    fi
  done
}

long_name() { # --NAME, or as much of it as no other option begins with
  local name=${1#--} known found=()
  for known in $sbatch_values $sbatch_flags; do
    [[ "$known" != "$name" ]] || { echo "$name" && return; }
    [[ "$known" != "$name"* ]] || found+=("$known")
  done
  ((${#found[@]} != 1)) || name=${found[0]}
  echo "$name"
}

takes_value() { # NAME NEXT: whether the word behind option NAME belongs to it; one of a site's plugin may be either
  if [[ "$sbatch_values" == *[[:space:]]"$1"[[:space:]]* ]]; then
    return 0
  fi
  [[ "$sbatch_flags" != *[[:space:]]"$1"[[:space:]]* && "$2" != -* && "$2" != *.sbatch ]]
}
