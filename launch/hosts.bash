# shellcheck shell=bash
# What ranks on other hosts need and ssh does not carry.
#
# `deepspeed --hostfile` reaches them by pdsh, which passes on variables that begin with PYTHON, UCX, MV2 or MLFLOW (and
# NCCL where there are GPUs): not DS_ACCELERATOR, OMP_NUM_THREADS or GLOO_SOCKET_IFNAME. So the bare form,
# DS_ARGS="--hostfile HOSTS" bash launch/pretrain_glm.sh, hands over in one variable that begins with PYTHON what the
# caller has set. Where `deepspeed` itself was called, the file .deepspeed_env in the folder of the call, or at home,
# names them (NAME=VALUE, a line each); what nobody names follows from the host.
#
#   HAND_OVER   names of more variables, such as "HF_HOME SSL_CERT_FILE". No secrets: deepspeed logs what it hands over

hand_over() { # the caller's settings, to the ranks on all hosts
  local name pairs=()
  for name in $(compgen -e); do
    if [[ "$name" =~ ^(DS_ACCELERATOR|KERNELS_BACKEND|(OMP|GLOO|NCCL|TORCH|FI)_.*)$ || " ${HAND_OVER:-} " == *" $name "* ]]; then
      pairs+=("$name=${!name}")
    fi
  done
  if ((${#pairs[@]})); then
    PYTHON_HANDED_OVER=$(printf '%s\0' "${pairs[@]}" | base64 -w 0)
    export PYTHON_HANDED_OVER
  fi
  # A host that is gone must not keep `deepspeed` waiting for its ssh.
  export PDSH_SSH_ARGS_APPEND="-o ServerAliveInterval=15 -o ServerAliveCountMax=4 ${PDSH_SSH_ARGS_APPEND:-}"
}

take_over() { # what was handed over and is not set here; then what follows from this host
  local pair
  while IFS= read -r -d '' pair; do
    [[ -v ${pair%%=*} ]] || export "${pair?}"
  done < <(base64 -d <<<"${PYTHON_HANDED_OVER:-}")
  unset PYTHON_HANDED_OVER
  if [[ -z "${DS_ACCELERATOR:-}" ]] && ! has_gpu; then
    export DS_ACCELERATOR=cpu # else DeepSpeed looks for one, with a warning a rank
  fi
}

has_gpu() { # of NVIDIA, of AMD, or under WSL
  [[ -e /dev/nvidiactl || -e /dev/kfd || -e /dev/dxg ]]
}
