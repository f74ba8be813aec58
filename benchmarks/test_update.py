"""Speed and memory of a policy update, beside a bare Hugging Face loop over the same tokens.

The bare loop is what anybody would write first: each sequence by itself without padding, labels, backward; no
optimiser step on either side. Ratios are of processor time, which other load on the machine disturbs less. Both use
PyTorch's attention, bfloat16 autocast and the same threads. `python -m benchmarks.test_update bare` (or `ours`) prints
one side's peak of memory.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_train.memory import give_back
from agentgym_train.models import demo_model_path, load_model, load_tokenizer, stop_tokens
from agentgym_train.packing import pack
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import make_optimiser, update_policy
from agentgym_wrappers import ActionParser, HorizonCurriculum

BUDGET = 1024  # tokens in a row
BFLOAT16_NOISE = 0.03  # of a gradient, relative; tests compare in float32
PEAK = Path("/proc/self/status")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model(str(demo_model_path()))


def textcraft_batch(
    model: PreTrainedModel, subset: str = "Depth2", groups: int = 2, samples: int = 3
) -> list[Trajectory]:
    """Groups of TextCraft episodes; members differ in what they say after the shared prompt."""
    chat = Chat(load_tokenizer(str(demo_model_path())), stop_tokens(model))
    env = HorizonCurriculum(ActionParser(gymnasium.make("AgentGym/TextCraft-v0", subset=subset)), 10)
    tasks = [task.id for task in env.unwrapped.tasks[:groups] for _ in range(samples)]  # type: ignore[attr-defined]
    trajectories = oracle_trajectories(env, chat, tasks, [0] * len(tasks))
    env.close()
    for number, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            trajectory.tokens[turn.start] = 1000 + number
        trajectory.logprobs = [-1000.0 * flag for flag in trajectory.mask]
    return trajectories


def group_of_eight(prefix: int = 512, suffix: int = 128, trained: float = 0.15) -> list[Trajectory]:
    """Eight trajectories with a long prompt in common and little of the rest sampled."""
    rng = random.Random(0)
    prompt = [rng.randrange(1000, 40000) for _ in range(prefix)]
    trajectories = []
    for sample in range(8):
        trajectory = Trajectory(Episode("long", 0, sample, 9, ""))
        trajectory.append_given(prompt)
        trajectory.prompt_length = prefix
        left = round(trained * suffix)
        for turn in range(4):  # replies with observations between them
            reply = left // (4 - turn)
            left -= reply
            trajectory.append_sampled([rng.randrange(1000, 40000) for _ in range(reply)], [-1000.0] * reply)
            trajectory.append_given([rng.randrange(1000, 40000) for _ in range(suffix // 4 - reply)])
        trajectories.append(trajectory)
    return trajectories


def bare_step(model: PreTrainedModel, optimiser: torch.optim.AdamW, batch: list[Trajectory]) -> None:
    """A step on the mean negative log-likelihood of the sampled tokens."""
    optimiser.zero_grad(set_to_none=True)
    trained = sum(trajectory.sampled for trajectory in batch)
    for trajectory in batch:
        tokens = torch.tensor([trajectory.tokens])
        labels = torch.where(torch.tensor([trajectory.mask]) > 0, tokens, -100)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        (loss * (trajectory.sampled / trained)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    optimiser.step()


def our_step(
    model: PreTrainedModel, optimiser: torch.optim.AdamW, batch: list[Trajectory], budget: int, share_prompts: bool
) -> None:
    """The same gradient by the policy loss: every advantage is 1, and so is every ratio and weight.

    The weights are at their cap, since the engine's log-probabilities are given as -1000.
    """
    rows = pack(batch, budget, share_prompts)
    update_policy(
        model,
        optimiser,
        rows,
        [torch.ones(len(row.targets)) for row in rows],
        [trajectory.sampled for trajectory in batch],
        None,
        1.0,
        0.0,
        AlgorithmConfig(kl_coef=0.0, importance_cap=1.0),
        OptimiserConfig(precision="bfloat16", max_grad_norm=math.inf),
        lambda: None,
    )


def seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def gradients(model: PreTrainedModel) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def compare(
    model: PreTrainedModel, batch: list[Trajectory], budget: int, share_prompts: bool, rounds: int = 2
) -> dict[str, float]:
    """Times as fast as the bare loop, and how far the gradients are apart; each side is run in turns."""
    optimiser = make_optimiser(model, OptimiserConfig(lr=0.0))
    bare_step(model, optimiser, batch[:1])  # makes the optimiser's state
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(seconds(lambda: bare_step(model, optimiser, batch)))
        expected = gradients(model)
        ours.append(seconds(lambda: our_step(model, optimiser, batch, budget, share_prompts)))
    got = gradients(model)
    tokens = sum(len(trajectory.tokens) for trajectory in batch)
    computed = sum(len(row.tokens) for row in pack(batch, budget, share_prompts))
    return {
        "times as fast as bare": round(min(bare) / min(ours), 2),
        "tokens/s": round(tokens / min(ours), 1),
        "bare tokens/s": round(tokens / min(bare), 1),
        "tokens": tokens,
        "tokens computed": computed,
        "gradient difference": round(float((got - expected).norm() / expected.norm()), 4),
    }


def test_update_of_episodes_one_by_one(model: PreTrainedModel) -> None:
    """Nothing is shared: what packing, masks and diagnostics cost."""
    result = compare(model, textcraft_batch(model), BUDGET, share_prompts=False)
    print("\nupdate, nothing shared", result)
    assert result["gradient difference"] < BFLOAT16_NOISE
    assert result["times as fast as bare"] >= 0.85


def test_update_of_episodes_in_packed_rows(model: PreTrainedModel) -> None:
    result = compare(model, textcraft_batch(model), BUDGET, share_prompts=True)
    print("\nupdate, packed", result)
    assert result["gradient difference"] < BFLOAT16_NOISE
    assert result["times as fast as bare"] >= 0.85


def test_update_of_a_group_with_a_long_prompt(model: PreTrainedModel) -> None:
    result = compare(model, group_of_eight(), 2048, share_prompts=True, rounds=1)
    print("\nupdate, prompt 512, 8 x 128", result)
    assert result["gradient difference"] < BFLOAT16_NOISE
    assert result["times as fast as bare"] >= 1.8


@pytest.mark.skipif(not PEAK.exists(), reason="the peak of memory is read from /proc, which is Linux's")
def test_memory_of_an_update() -> None:
    """Rows as large as the bare loop's largest sequence, each side in a process of its own."""
    peaks = {}
    for side in ("bare", "ours"):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.test_update", side], capture_output=True, text=True, check=True
        )
        peaks[side] = int(done.stdout)
    print("\npeak memory, MB", peaks)
    assert peaks["ours"] <= 1.15 * peaks["bare"]


def main(side: str) -> None:
    """Print the peak of a step's memory in MB, weights, gradients and optimiser included."""
    model = load_model(str(demo_model_path()))
    optimiser = make_optimiser(model, OptimiserConfig(lr=0.0))
    batch = group_of_eight()[:3]
    bare_step(model, optimiser, [textcraft_batch(model)[0]])  # makes the optimiser's state
    optimiser.zero_grad(set_to_none=True)
    give_back()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    if side == "bare":
        bare_step(model, optimiser, batch)
    else:
        our_step(model, optimiser, batch, len(batch[0].tokens), share_prompts=True)
    peak = next(line for line in PEAK.read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) // 1024)


if __name__ == "__main__":
    main(sys.argv[1])
