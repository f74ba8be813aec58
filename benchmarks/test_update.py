"""Speed of a policy update, beside a bare Hugging Face training step over the same tokens.

Ratios are of processor time, which other load on the machine disturbs less.
"""

import time
from typing import Any

import gymnasium
import pytest
import torch
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_train.models import demo_model_path, load_model, load_tokenizer, stop_tokens
from agentgym_train.packing import pack
from agentgym_train.trajectory import Trajectory
from agentgym_train.update import make_optimiser, update_policy
from agentgym_wrappers import ActionParser, HorizonCurriculum

GROUPS, SAMPLES = 2, 3


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return load_model(str(demo_model_path()))


@pytest.fixture(scope="module")
def batch(model: PreTrainedModel) -> list[Trajectory]:
    """Groups of TextCraft episodes; members differ in what they say after the shared prompt."""
    chat = Chat(load_tokenizer(str(demo_model_path())), stop_tokens(model))
    env = HorizonCurriculum(ActionParser(gymnasium.make("AgentGym/TextCraft-v0", subset="Depth2")), 10)
    tasks = [task.id for task in env.unwrapped.tasks[:GROUPS] for _ in range(SAMPLES)]  # type: ignore[attr-defined]
    trajectories = oracle_trajectories(env, chat, tasks, [0] * len(tasks))
    env.close()
    for number, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            trajectory.tokens[turn.start] = 1000 + number
        trajectory.logprobs = [-1.0 * flag for flag in trajectory.mask]
    return trajectories


def bare_step(model: PreTrainedModel, optimiser: torch.optim.Optimizer, batch: list[Trajectory]) -> None:
    """What anybody would write first: each sequence without padding, labels, backward."""
    optimiser.zero_grad(set_to_none=True)
    for trajectory in batch:
        tokens = torch.tensor([trajectory.tokens])
        labels = torch.where(torch.tensor([trajectory.mask]) > 0, tokens, -100)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        (loss / len(batch)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def test_grpo_update(benchmark: Any, model: PreTrainedModel, batch: list[Trajectory]) -> None:
    config = OptimiserConfig(lr=1e-6, precision="bfloat16")
    optimiser = make_optimiser(model, config)
    rows = pack(batch, config.token_budget)
    ours: list[float] = []

    def update() -> None:
        start = time.process_time()
        update_policy(
            model,
            optimiser,
            rows,
            [(-1.0) ** row.owners for row in rows],
            [trajectory.sampled for trajectory in batch],
            None,
            1.0,
            config.lr,
            AlgorithmConfig(),
            config,
            lambda: None,
        )
        ours.append(time.process_time() - start)

    update()  # the first one also makes the optimiser's state
    start = time.process_time()
    bare_step(model, optimiser, batch)
    bare = time.process_time() - start
    benchmark.pedantic(update, rounds=1)

    tokens = sum(len(trajectory.tokens) for trajectory in batch)
    computed = sum(len(row.tokens) for row in rows)
    prompts = {tuple(trajectory.tokens[: trajectory.prompt_length]) for trajectory in batch}
    needed = sum(map(len, prompts)) + sum(len(trajectory.tokens) - trajectory.prompt_length for trajectory in batch)
    ratio = bare / ours[-1]
    benchmark.extra_info |= {
        "tokens/s": round(tokens / ours[-1], 1),
        "bare Hugging Face, tokens/s": round(tokens / bare, 1),
        "times as fast as bare": round(ratio, 2),
        "tokens": tokens,
        "tokens computed": computed,
        "padding share": round(1 - needed / computed, 3),  # computed for nothing, or more than once
    }
    print("\nGRPO update", benchmark.extra_info)
    assert ratio >= 0.75
