#!/bin/bash
# Two nodes with eight GPUs each: `sbatch experiments/launch/slurm.sh`. The run folder is on a disk that all nodes share.
#SBATCH --job-name=rljax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append

RUN=${RUN:-/shared/runs/one}
FLAGS=${FLAGS:---model Qwen/Qwen3-0.6B --dataset openai/gsm8k:main --reward gsm8k --fsdp 16}

# SIGTERM comes five minutes before the time is up: the step ends and everything is saved. The same command continues the run.
srun --kill-on-bad-exit=1 .venv/bin/rljax train $FLAGS --run "$RUN" --resume auto --coordinator auto
status=$?

# 75: a node was lost. 130: the time is up, or the job was preempted.
if [ "$status" -eq 75 ] || [ "$status" -eq 130 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
