#!/usr/bin/env bash
# Usage: scripts/gpu_check.sh   (a checkout on a machine with an NVIDIA GPU; under 8 minutes after `make vllm demo-model`)
# Runs the tests of the engines and of training on the GPU, then trains the demo's model for three steps with vLLM and
# prints tokens a second and how busy the GPU was.
set -euo pipefail
cd "$(dirname "$0")/.."

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || {
    echo "error: no NVIDIA GPU is found here (nvidia-smi fails)." >&2
    exit 1
}
make vllm demo-model
python=.venv/bin/python
"$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU"; print("torch", torch.__version__)'

run=$(mktemp -d)
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits --loop=1 >"$run/gpu.csv" &
monitor=$!
trap 'kill "$monitor" 2>/dev/null || true; rm -rf "$run"' EXIT

echo "== Tests"
timeout 240 "$python" -m pytest -q -p no:cacheprovider tests/train/test_engine_vllm.py tests/train/test_engine_server.py \
    tests/train/test_engine.py tests/train/test_update.py tests/train/test_logprobs.py

echo "== Three GRPO steps with vLLM in the same process"
from=$(wc -l <"$run/gpu.csv")
timeout 180 .venv/bin/agentgym train --recipe textcraft-demo --run-dir "$run/train" --steps 3 --engine.kind vllm \
    --model.device cuda --evaluate.tasks 4 --evaluate.samples 1 --rollout.max-parallel 32

"$python" - "$run/train/metrics.jsonl" "$run/gpu.csv" "$from" <<'END'
import json, pathlib, statistics, sys

rows = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
for row in (row for row in rows if row["phase"] == "train"):
    rollout, update = row["seconds/rollout"], row.get("seconds/update", 0.0)
    print(f"step {row['step']}: {row['tokens/sampled'] / rollout:.0f} sampled tokens/s in {rollout:.1f} s of rollouts, "
          f"update {update:.1f} s, engine difference {row.get('engine_difference', float('nan')):.4f} nats")
busy = [[float(cell) for cell in line.split(",")] for line in pathlib.Path(sys.argv[2]).read_text().splitlines()]
busy = busy[int(sys.argv[3]):] or busy
print(f"GPU: {statistics.mean(cell[0] for cell in busy):.0f} % busy on average, {max(cell[1] for cell in busy):.0f} MiB at most")
END
