"""Rollouts in slow environments, beside the engine alone and beside a barrier per turn, in one run.

Every reply has the same length, since no token ends one, so each side samples the same number of tokens. What steps
cost is slept in worker threads, and depends on the episode and turn alone. Times are wall clock, each side's best of
rounds that are taken in turns.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from agentgym_train.chat import Chat
from agentgym_train.compact import compact_path
from agentgym_train.engines import Request
from agentgym_train.engines.hf import HFEngine, copy_for_sampling
from agentgym_train.models import demo_model_path, load_model, load_tokenizer
from agentgym_train.rollout import RolloutRunner
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_wrappers import ActionParser, FixedHorizon, HorizonCurriculum, SubprocVectorEnv
from benchmarks.algorithms import MODEL

ENV_ID = "AgentGym/TextCraft-Depth1-v0"
ENVS = 16
TASKS, SAMPLES = 4, 8  # of a step by default
StepTime = Callable[[random.Random], float]


def uniform(rng: random.Random) -> float:
    """5 to 200 ms."""
    return rng.uniform(0.005, 0.2)


def long_tailed(rng: random.Random) -> float:
    """Lognormal with a median of 20 ms; one in twenty takes a second."""
    return 1.0 if rng.random() < 0.05 else rng.lognormvariate(math.log(0.02), 0.5)


class Slow(gymnasium.Wrapper[str, str, str, str]):
    """Sleeps in each step."""

    def __init__(self, env: gymnasium.Env[str, str], step_time: StepTime) -> None:
        super().__init__(env)
        self.step_time = step_time
        self.rng = random.Random()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.rng = random.Random(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        time.sleep(self.step_time(self.rng))
        return super().step(action)


def slow_environments(step_time: StepTime, turns: int) -> SubprocVectorEnv:
    return SubprocVectorEnv.make(
        ENV_ID,
        ENVS,
        env_wrappers=[
            functools.partial(Slow, step_time=step_time),
            ActionParser,
            functools.partial(HorizonCurriculum, schedule=FixedHorizon(turns)),
        ],
        thread_per_env=True,
        autoreset_mode="Disabled",
    )


def episodes(vec: SubprocVectorEnv, turns: int) -> list[Episode]:
    """A step's groups. Only what is slept differs between the members of a group: TextCraft takes no seed."""
    tasks = [task.id for task in vec.get_attr("tasks")[0][:TASKS]]
    return [
        Episode(task, place * SAMPLES + sample, sample, turns, "benchmark")
        for place, task in enumerate(tasks)
        for sample in range(SAMPLES)
    ]


def engine_and_chat(path: Path) -> tuple[HFEngine, Chat]:
    """Replies end at their largest length only."""
    engine = HFEngine(copy_for_sampling(load_model(str(path)), "bfloat16"), frozenset())
    return engine, Chat(load_tokenizer(str(path)))


def reply_alone(engine: HFEngine, played: Sequence[Trajectory]) -> int:
    """Sample the replies of episodes without their environments, whose answers are known; as many at a time as there
    were environments. Returns the number of sampled tokens."""
    waiting = list(reversed(played))
    under_way: dict[str, tuple[Trajectory, list[int], int]] = {}  # its context and turn
    due: list[tuple[Trajectory, list[int], int]] = []
    sampled = 0
    while waiting or due or under_way:
        while waiting and len(due) + len(under_way) < ENVS:
            first = waiting.pop()
            due.append((first, first.tokens[: first.prompt_length], 0))
        asked = {f"{one.episode.seed}": (one, context, turn) for one, context, turn in due}
        requests = [
            Request(key, context, one.turns[turn].stop - one.turns[turn].start, f"{key}/{turn}")
            for key, (one, context, turn) in asked.items()
        ]
        if requests:
            engine.submit(requests, 1.0)
        under_way |= asked
        due = []
        for key, completion in engine.collect(60.0).items():
            one, context, turn = under_way.pop(key)
            sampled += len(completion.tokens)
            if turn + 1 == len(one.turns):
                engine.release([key])
            else:
                answer = one.tokens[one.turns[turn].stop : one.turns[turn + 1].start]
                due.append((one, [*context, *completion.tokens, *answer], turn + 1))
    engine.release()
    return sampled


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("model", "turns", "reply_tokens", "at_least"),
    [
        pytest.param(demo_model_path, 3, 32, 0.8, id="demo"),
        # Its replies take less time than the steps, so half of the environments are always stepping, and the engine
        # makes twice as many passes over half as many replies.
        pytest.param(lambda: compact_path(MODEL), 4, 24, 0.4, id="compact"),
    ],
)
def test_tokens_beside_the_engine_alone(
    model: Callable[[], Path], turns: int, reply_tokens: int, at_least: float
) -> None:
    """16 environments of 5 to 200 ms a step."""
    rounds = 2
    engine, chat = engine_and_chat(model())
    with slow_environments(uniform, turns) as vec:
        runner = RolloutRunner(vec, engine, chat, max_reply_tokens=reply_tokens, max_context=2048)
        todo = episodes(vec, turns)
        played = runner.run(todo, 1.0)  # warms up, and tells what the environments answer
        ours, alone = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda: runner.run(todo, 1.0)))
            alone.append(seconds(lambda: reply_alone(engine, played)))
    tokens = sum(trajectory.sampled for trajectory in played)
    assert tokens == len(todo) * turns * reply_tokens == reply_alone(engine, played[:1]) * len(todo)
    result: dict[str, Any] = {
        "of the engine alone": round(min(alone) / min(ours), 2),
        "each round": [round(b / a, 2) for a, b in zip(ours, alone, strict=True)],
        "tokens/s": round(tokens / min(ours), 1),
        "tokens/s alone": round(tokens / min(alone), 1),
    }
    print("\nrollouts, 5 to 200 ms a step", result)
    assert result["of the engine alone"] >= at_least


@pytest.mark.timeout(1200)
def test_long_tailed_steps_beside_a_barrier() -> None:
    """The compact model, 16 environments, 20 ms a step with one in twenty of a second."""
    turns, reply_tokens, rounds = 8, 16, 2
    engine, chat = engine_and_chat(compact_path(MODEL))
    with slow_environments(long_tailed, turns) as vec:
        free, held = (
            RolloutRunner(
                vec, engine, chat, max_reply_tokens=reply_tokens, max_context=2048, deterministic=deterministic
            )
            for deterministic in (False, True)
        )
        todo = episodes(vec, turns)
        played = free.run(todo, 1.0)
        assert sum(trajectory.sampled for trajectory in played) == len(todo) * turns * reply_tokens
        without, barrier = [], []
        for _ in range(rounds):
            without.append(seconds(lambda: free.run(todo, 1.0)))
            barrier.append(seconds(lambda: held.run(todo, 1.0)))
        engine_only = seconds(lambda: reply_alone(engine, played))
    result: dict[str, Any] = {
        "of the time with a barrier": round(min(without) / min(barrier), 2),
        "each round": [round(a / b, 2) for a, b in zip(without, barrier, strict=True)],
        "seconds": round(min(without), 2),
        "seconds with a barrier": round(min(barrier), 2),
        "seconds of the engine alone": round(engine_only, 2),
    }
    print("\nrollouts, long-tailed steps", result)
    assert result["of the time with a barrier"] <= 0.6
