"""SubprocVectorEnv beside Gymnasium's vector environments, with TextCraft, in one run."""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from agentgym_wrappers import SubprocVectorEnv
from tests.rough_env import ROUGH_ID

TEXTCRAFT = "AgentGym/TextCraft-v0"
BABYAI = "AgentGym/BabyAI-v0"
ENVS = 64
ROUNDS = 5  # each contender's best of these counts, taken in turns


def make() -> Any:
    return gymnasium.make(TEXTCRAFT)


def valid_actions() -> list[list[str]]:
    """Some valid actions of each environment's first task in TextCraft."""
    actions = []
    for index in range(ENVS):
        env = make()
        env.reset(seed=index)
        listed = sorted(env.unwrapped.available_actions())
        rng = random.Random(index)
        actions.append([listed[int(rng.random() * len(listed))] for _ in range(64)])
        env.close()
    return actions


def steps_per_second(vec: Any, actions: Sequence[Sequence[str]], steps: int) -> float:
    vec.reset(seed=0)
    rows = [[own[turn % 64] for own in actions] for turn in range(steps)]
    began = time.perf_counter()
    for row in rows:
        vec.step(row)
    return ENVS * steps / (time.perf_counter() - began)


def received_per_second(vec: SubprocVectorEnv, actions: list[list[str]], steps: int) -> float:
    vec.reset(seed=0)
    turns = [0] * ENVS
    began = time.perf_counter()
    vec.send(range(ENVS), [own[0] for own in actions])
    received = 0
    while received < ENVS * steps:
        results = vec.recv(at_least=ENVS // 4)
        received += len(results)
        indices = [result.env_index for result in results]
        for index in indices:
            turns[index] += 1
        vec.send(indices, [actions[index][turns[index] % 64] for index in indices])
    seconds = time.perf_counter() - began
    while vec.under_way:
        vec.recv()
    return received / seconds


@contextmanager
def closing(*vecs: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for vec in vecs:
            vec.close()


def test_steps(benchmark: Any) -> None:
    """64 environments, valid actions."""
    actions = valid_actions()
    sync, apart = SyncVectorEnv([make] * ENVS), AsyncVectorEnv([make] * ENVS, shared_memory=False)
    ours = {workers: SubprocVectorEnv.make(TEXTCRAFT, ENVS, workers=workers) for workers in (1, 2)}
    with closing(sync, apart, *ours.values()):
        contenders: dict[str, Callable[[], float]] = {
            "SyncVectorEnv": lambda: steps_per_second(sync, actions, 100),
            "AsyncVectorEnv": lambda: steps_per_second(apart, actions, 30),
            "step, 1 worker": lambda: steps_per_second(ours[1], actions, 100),
            "step, 2 workers": lambda: steps_per_second(ours[2], actions, 100),
            "send and recv, 1 worker": lambda: received_per_second(ours[1], actions, 100),
            "send and recv, 2 workers": lambda: received_per_second(ours[2], actions, 100),
        }
        best = {name: 0.0 for name in contenders}
        for _ in range(ROUNDS):
            for name, run in contenders.items():
                best[name] = max(best[name], run())
        for name, value in best.items():
            benchmark.extra_info[f"{name}, steps/s"] = round(value)
        benchmark(ours[1].step, [own[0] for own in actions])
    step = max(best["step, 1 worker"], best["step, 2 workers"])
    received = max(best["send and recv, 1 worker"], best["send and recv, 2 workers"])
    print("\nvector", benchmark.extra_info)
    print(
        f"step: {step / best['AsyncVectorEnv']:.1f} times AsyncVectorEnv, {step / best['SyncVectorEnv']:.2f} times Sync"
    )
    print(
        f"send and recv: {received / best['AsyncVectorEnv']:.1f} times AsyncVectorEnv, "
        f"{received / best['SyncVectorEnv']:.2f} times Sync"
    )
    assert step >= 3 * best["AsyncVectorEnv"]
    assert received >= 5 * best["AsyncVectorEnv"]
    assert received >= best["SyncVectorEnv"]
    # A step of TextCraft takes 7 microseconds, about what it takes to carry its result to another process.
    assert step >= 0.6 * best["SyncVectorEnv"]


def loop_steps_per_second(envs: list[Any], actions: list[list[str]], steps: int) -> float:
    """A plain loop; a reset takes the place of a step, as with next-step autoreset."""
    for index, env in enumerate(envs):
        env.reset(seed=index)
    ended: set[int] = set()
    began = time.perf_counter()
    for turn in range(steps):
        for index, env in enumerate(envs):
            if index in ended:
                ended.remove(index)
                env.reset()
            elif any(env.step(actions[index][turn])[2:4]):
                ended.add(index)
    return len(envs) * steps / (time.perf_counter() - began)


def test_costlier_steps(benchmark: Any) -> None:
    """64 BabyAI environments on two workers against a plain loop over as many; medians, taken in turns."""
    rng = random.Random(0)
    moves = ["turn left", "turn right", "move forward", "toggle"]
    actions = [[moves[int(rng.random() * len(moves))] for _ in range(64)] for _ in range(ENVS)]
    envs = [gymnasium.make(BABYAI) for _ in range(ENVS)]
    with SubprocVectorEnv.make(BABYAI, ENVS, workers=2) as vec, closing(*envs):
        contenders: dict[str, Callable[[], float]] = {
            "a plain loop": lambda: loop_steps_per_second(envs, actions, 40),
            "step": lambda: steps_per_second(vec, actions, 40),
            "send and recv": lambda: received_per_second(vec, actions, 40),
        }
        values: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(2 * ROUNDS):
            for name, run in contenders.items():
                values[name].append(run())
        vec.reset(seed=0)
        benchmark(vec.step, [own[0] for own in actions])
    median = {name: statistics.median(each) for name, each in values.items()}
    benchmark.extra_info.update({f"{name}, steps/s": round(value) for name, value in median.items()})
    loop, step, received = median.values()
    print(f"\nBabyAI {benchmark.extra_info}: {step / loop:.2f} and {received / loop:.2f} times a loop")
    assert received >= 1.1 * loop  # the target is 1.5; see docs/vectorization.md for what stands in its way


def fast_steps(vec: SubprocVectorEnv, slow: bool, seconds: float) -> int:
    """Steps that environments 1 to 15 take while environment 0 sleeps 0.2 s a step, or does nothing."""
    vec.reset(seed=0, options={"task": "counter_4"})
    vec.send(range(0 if slow else 1, 16), ["sleep 0.2"] * slow + ["sleep 0.002"] * 15)
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for result in vec.recv(timeout=0.1):
            index = result.env_index
            count += index > 0
            if result.truncated:
                vec.send_reset([index], options={"task": "counter_4"})
            else:
                vec.send([index], ["sleep 0.2" if index == 0 else "sleep 0.002"])
    while vec.under_way:
        vec.recv()
    return count


@pytest.mark.parametrize("way", [{"thread_per_env": True}, {"workers": 16}], ids=["threads", "workers"])
def test_one_slow_environment_among_fast_ones(benchmark: Any, way: dict[str, Any]) -> None:
    """The fast ones keep their pace."""
    with SubprocVectorEnv.make(ROUGH_ID, 16, autoreset_mode="Disabled", **way) as vec:
        alone = beside = 0
        for _ in range(3):
            alone = max(alone, fast_steps(vec, False, 1.0))
            beside = max(beside, fast_steps(vec, True, 1.0))
    benchmark.extra_info.update(alone=alone, beside=beside)
    print(f"\nfast environments beside a slow one: {beside / alone:.2f} of their own pace ({way})")
    benchmark(lambda: None)
    assert beside >= 0.9 * alone


def private_kb(pid: int) -> int:
    """Proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def test_memory_of_a_further_environment(benchmark: Any) -> None:
    """What 16 environments in one worker take beyond one, less what 15 take in this process."""
    with SubprocVectorEnv.make(TEXTCRAFT, 1) as one, SubprocVectorEnv.make(TEXTCRAFT, 16) as many:
        before = private_kb(os.getpid())
        kept = [make() for _ in range(15)]
        for vec in (one, many):
            vec.reset(seed=0)
            vec.step(["inventory"] * vec.num_envs)
        for env in kept:
            env.reset(seed=0)
        alone = (private_kb(os.getpid()) - before) / 15
        each = (private_kb(many.worker_pids[0]) - private_kb(one.worker_pids[0])) / 15
    benchmark.extra_info["KB beyond the environment"] = round(each - alone)
    print(f"\na further environment takes {each:.0f} KB in its worker, {alone:.0f} KB in a process without")
    benchmark(lambda: None)
    assert each - alone < 3_000


def test_fork(benchmark: Any) -> None:
    """Eight siblings in the state after ten turns, against a reset and a replay of each."""
    actions = valid_actions()[0][:10]
    with SubprocVectorEnv.make(TEXTCRAFT, 9, autoreset_mode="Disabled") as vec:
        siblings = list(range(1, 9))

        def replay(indices: list[int]) -> None:
            vec.send_reset(indices, [0] * len(indices))
            vec.recv(at_least=len(indices))
            for action in actions:
                vec.send(indices, [action] * len(indices))
                vec.recv(at_least=len(indices))

        replay([0])
        best = {"fork": 9.0, "replay": 9.0}
        for _ in range(20):
            for name, run in (("fork", lambda: vec.fork_from(0, siblings)), ("replay", lambda: replay(siblings))):
                began = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - began)
        benchmark.extra_info["times a reset and replay"] = round(best["fork"] / best["replay"], 2)
        benchmark(vec.fork_from, 0, siblings)
    print(f"\nfork to 8: {best['fork'] / best['replay']:.2f} times a reset and replay")
    assert best["fork"] <= 1.1 * best["replay"]
