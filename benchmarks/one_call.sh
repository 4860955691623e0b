#!/usr/bin/env bash
# Measures a claim in one call, on a machine lent for minutes and without network: unpacks an engine,
# runs `fasttrack validate`, hands out the bundle and a log.
#
#   benchmarks/one_call.sh CLAIM TARGET OUT [SECONDS [OPTION...]]
#
#   CLAIM, TARGET  as `validate` takes them; OPTION: its other options
#   OUT            folder for the .ftb and one_call.log; where the time was too short, for run.tgz
#   SECONDS        all the time there is, 540 unless given. The run is interrupted before, and the
#                  same call goes on where it was, as long as the machine keeps WORK
#   PYTHON         the interpreter, python3 unless set
#   ENGINE_PARTS   folder with part.*, a Python tree with the engine as one tar, compressed with xz
#                  and cut; unset: the engine is installed
#   WORK           where things are unpacked and runs are kept, relative to the repository: .cache/one_call
#
# Eight GPUs:  ENGINE_PARTS=parts benchmarks/one_call.sh optimizations/kimi_k3/h200.toml h200-tp8 out 540 --only perf --together 2
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
claim=$1 target=$2 out=$3 limit=${4:-540}
shift $(($# < 4 ? 3 : 4))
mkdir -p "$out"
out=$(realpath "$out") parts=${ENGINE_PARTS:+$(realpath "$ENGINE_PARTS")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${WORK:-.cache/one_call}
mkdir -p "$work"
exec > >(tee -a "$out/one_call.log") 2>&1
said() { echo "[$SECONDS s] $*"; }

if [ -n "$parts" ]; then
  site=$(realpath "$work")/engine
  if [ ! -e "$site/.complete" ]; then
    mkdir -p "$site"
    find "$parts" -name 'part.*' -print0 | sort -z | xargs -0 cat | xz -dc -T0 | tar x -C "$site"
    touch "$site/.complete"
  fi
  export PYTHONPATH=$PWD:$PWD/optimizations:$site:$site/nvidia_cutlass_dsl/dsl_packages${PYTHONPATH:+:$PYTHONPATH}
  export LD_LIBRARY_PATH=$site/nvidia/nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  said "engine unpacked"
fi
# No multicast over NVLink: what is measured here works without it.
# FlashInfer's all-reduce asks for multicast unless another of its ways is named.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0
export VLLM_ALLREDUCE_USE_FLASHINFER=0 VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 KIMI_K3_CACHE=${KIMI_K3_CACHE:-$(realpath "$work")/kernels}

# Folders are named relative to the repository, so that no path of this machine gets into a bundle.
# A background job is deaf to interrupts without job control, and where this script was started deaf.
set -m
env --default-signal=INT "${PYTHON:-python3}" -m fasttrack validate "$claim" --target "$target" --runs "$work/runs" --out "$work/bundles" "$@" &
run=$!
left=$((limit - SECONDS - 40))
(sleep $((left > 5 ? left : 5)) && kill -INT $run) 2> /dev/null &
watch=$!
status=0
wait $run || status=$?
kill -- -$watch 2> /dev/null || true # its sleep with it
said "validate ended with status $status"
if ! cp "$work"/bundles/*.ftb "$out" 2> /dev/null; then
  [ ! -d "$work/runs" ] || tar czf "$out/run.tgz" -C "$work" runs
fi
ls -l "$out"
exit $status
