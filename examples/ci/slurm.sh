#!/usr/bin/env bash
# sbatch slurm.sh: one task a node (of GPUs: all of them), found by the variables that srun sets.
#SBATCH --job-name=stripectl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=00:30:00
set -euo pipefail

# The hosts prove to each other that they know this secret; srun passes it on with the environment.
export STRIPECTL_TOKEN="${STRIPECTL_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}"

# Every task runs the same command; the first one decides, saves and draws. A job that was requeued continues.
run="${RUN:-$PWD/run}"
resume=()
if [ -e "$run/run.json" ]; then resume=(--resume); fi
srun --kill-on-bad-exit=0 "${STRIPECTL:-stripectl}" bench --target "${TARGET:-local}" --seqlen "${SEQLEN:-256k}" \
  --method measured --pass forward --output "$run" "${resume[@]}" ${MORE:-}
