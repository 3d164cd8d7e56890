# shellcheck shell=bash
# A rank that mpirun of Open MPI has started, by itself or for `deepspeed --launcher openmpi`.
#
# mpirun says who each rank is, but not where rank 0 is to be found. On one host that is here. Of several it is the
# first node of the SLURM job that mpirun was called in; elsewhere the caller names it: mpirun -x MASTER_ADDR=HOST ...

rank_of_openmpi() { # what the trainer reads, from what mpirun sets
  export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
  export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE
  if [[ -z "${MASTER_ADDR:-}" ]]; then
    if ((WORLD_SIZE == LOCAL_WORLD_SIZE)); then
      MASTER_ADDR=127.0.0.1
    elif [[ -n "${SLURM_JOB_NODELIST:-}" ]]; then
      MASTER_ADDR=$(address_of_first_node "$SLURM_JOB_NODELIST")
    else
      refuse_without_address
    fi
  fi
  MASTER_PORT=${MASTER_PORT:-$(port_of_mpirun)}
  export MASTER_ADDR MASTER_PORT
}

port_of_mpirun() { # the same for all ranks: of Open MPI 4 a hash of mpirun's host and process, of 5 words with both
  local named=${OMPI_MCA_ess_base_jobid:-${PMIX_NAMESPACE:-0}} number
  if [[ "$named" =~ ^[0-9]+$ ]]; then
    number=$((named / 65536))
  else
    read -r number _ < <(cksum <<<"$named")
  fi
  echo $((30000 + number % 2700))
}

refuse_without_address() { # rank 0 says it; the others wait, since mpirun ends all when one ends
  if ((RANK == 0)); then
    echo "launch: mpirun started ranks on several hosts and none of them knows the address of rank 0. Name its host: mpirun -x MASTER_ADDR=$(hostname) ..." >&2
  else
    sleep 10
  fi
  exit 2
}
