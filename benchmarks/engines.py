"""Do the engines tell the trainer's probabilities, and what does an update of vLLM's weights cost?

    python -m benchmarks.engines agreement [--url http://127.0.0.1:8000 ...]
    python -m benchmarks.engines updates

The first prints the table of docs/results/engines.md: replies of each engine to prompts of TextCraft, and how far
their log-probabilities are from those that the trainer computes for the same tokens. The second updates vLLM's
weights many times, prints the times, and draws them with the process's memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path

import gymnasium
import psutil
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_train.chat import Chat
from agentgym_train.engines import Engine, EngineConfig, Request, make_engine
from agentgym_train.logprobs import autocast
from agentgym_train.memory import give_back
from agentgym_train.models import DEMO_MODEL, load_model, load_tokenizer, stop_tokens

PROMPTS, REPLIES, REPLY_TOKENS, MAX_CONTEXT = 2, 2, 48, 1024
FIGURE = Path(__file__).parents[1] / "docs/results/engines-updates.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agreement", "updates"])
    parser.add_argument("--url", nargs="*", default=[], help="running servers of the demo's model")
    parser.add_argument("--kinds", nargs="*", default=["hf", "vllm"], help="engines in this process")
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--updates", type=int, default=200)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    if arguments.what == "updates":
        updates(model, tokenizer, arguments.updates)
        return
    precisions = ("float32", "bfloat16")
    configs = [(EngineConfig(kind=kind), precision) for kind in arguments.kinds for precision in precisions]
    configs += [(EngineConfig(kind="server", urls=(url,)), "its own") for url in arguments.url]
    print("| Engine | Its type | Mean, trainer in float32 | Max. | Mean, trainer in bfloat16 | Max. | Tokens |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for config, precision in configs:
        agreement(config, precision, model, tokenizer)


def start(config: EngineConfig, precision: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Engine:
    chat = Chat(tokenizer, stop_tokens(model))
    return make_engine(
        config,
        model,
        tokenizer,
        chat.stop_tokens,
        precision=precision,
        max_context=MAX_CONTEXT,
        max_parallel=PROMPTS * REPLIES,
        training=config.kind != "server",
    )


def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    chat, env = Chat(tokenizer), gymnasium.make("AgentGym/TextCraft-v0")
    texts = [env.reset(seed=seed) for seed in range(PROMPTS)]
    env.close()
    return [chat.prompt(str(info["instruction"]), observation) for observation, info in texts]


def agreement(config: EngineConfig, precision: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Print one row of the table."""
    requests = [
        Request(f"{number}/{sample}", context, REPLY_TOKENS, f"{number}/{sample}")
        for number, context in enumerate(prompts(tokenizer))
        for sample in range(REPLIES)
    ]
    engine = start(config, precision, model, tokenizer)
    try:
        replies = engine.generate(requests, 1.0)
    finally:
        engine.close()
    cells = []
    for trainer in ("float32", "bfloat16"):
        differences = []
        for request, reply in zip(requests, replies, strict=True):
            tokens = torch.tensor([[*request.tokens, *reply.tokens]])
            with torch.no_grad(), autocast(model, trainer):
                logits = model(input_ids=tokens, use_cache=False).logits[0, len(request.tokens) - 1 : -1]
            plain = logits.float().log_softmax(-1).gather(-1, torch.tensor(reply.tokens)[:, None])[:, 0]
            differences.append((plain - torch.tensor(reply.logprobs)).abs())
        values = torch.cat(differences)
        cells += [f"{values.mean():.2g}", f"{values.max():.2g}"]
    print(f"| {config.kind} | {precision} | {' | '.join(cells)} | {len(values)} |", flush=True)


def updates(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int) -> None:
    """Update vLLM's weights again and again, with a few replies in between."""
    engine = start(EngineConfig(kind="vllm"), "bfloat16", model, tokenizer)
    requests = [Request(f"{n}", context, 4, f"{n}") for n, context in enumerate(prompts(tokenizer))]
    process = psutil.Process()
    cpu, wall, memory = [], [], []
    for number in range(count):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-4 * (-1) ** number)
        engine.generate(requests, 1.0)
        begun = time.perf_counter(), time.process_time()
        engine.update_weights(model)
        wall.append(time.perf_counter() - begun[0])
        cpu.append(time.process_time() - begun[1])
        gc.collect()
        give_back()
        memory.append(process.memory_info().rss / 2**20)
    engine.close()
    print(f"update: median {statistics.median(wall):.2f} s, of the processor {statistics.median(cpu):.2f} s")
    print(f"first ten: {statistics.median(cpu[:10]):.2f} s, last ten: {statistics.median(cpu[-10:]):.2f} s")
    places = sorted({0, count // 10, count // 2, count - 1})
    print("memory: " + ", ".join(f"{memory[place]:.0f} MiB after {place + 1}" for place in places))
    draw(cpu, memory)


def draw(seconds: list[float], memory: list[float]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.5))
    above.plot(seconds, linewidth=1)
    above.set(ylabel="seconds an update", ylim=(0, None))
    below.plot(memory, linewidth=1)
    below.set(ylabel="process, MiB", xlabel="update", ylim=(0, 1.1 * max(memory)))
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=120)


if __name__ == "__main__":
    main()
