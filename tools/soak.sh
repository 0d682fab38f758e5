#!/usr/bin/env bash
# tools/soak.sh [BUILD_DIR] [SECONDS] [ARGUMENT...]: 500 concurrent streams at the bundled model for two
# minutes, a tenth of them aborted, with caches that are too small for what runs. Fails if a request is lost,
# an answer differs from the one it gets alone, a page stays behind or memory grows (bench/load/load_run.h).
# The result goes to bench/results/soak.json. With a build of the preset `tsan`, ten seconds are enough.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
seconds=${2:-120}
shift $(($# < 2 ? $# : 2))
exec "$build/bench/fathom_load" --model=models/mini-v4 --streams=500 --aborts=0.1 --seconds="$seconds" \
  --max_seqs_per_batch=64 --max_tokens_per_batch=1024 --max_model_len=2048 --max_cache_size=108000000 \
  --prefix_group_tokens=128 --enable_schedule_overlap=true --prompt=lognormal:60:0.8:1000 \
  --answer=lognormal:30:0.8:200 --canaries=16 --canary_share=0.2 --patience=900 --interval=2 \
  --json=bench/results/soak.json "$@"
