"""BabyAI's speed, level by level and side by side in one run with minigrid itself.

Ratios are of processor time, which other load on the machine disturbs less.
"""

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, cast

import gymnasium
import pytest

from agentgym_envs.babyai import grammar, levels, planner, simulator
from agentgym_envs.babyai.env import BabyAIEnv

SEEDS = 20
STEPS = 200
PLANNED = 40
MOVES = {0: grammar.turn_left(), 1: grammar.turn_right(), 2: grammar.move_forward()}


@pytest.fixture(scope="module")
def env() -> BabyAIEnv:
    return cast(BabyAIEnv, gymnasium.make("AgentGym/BabyAI-v0", split="all").unwrapped)


@pytest.fixture(autouse=True)
def no_old_garbage() -> Iterator[None]:
    """Keep everything that is there already, the table of tasks above all, out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize("level", levels.NAMES)
def test_reset(level: str, env: BabyAIEnv) -> None:
    raw = gymnasium.make(simulator.registered()[level])
    raw.reset(seed=0)
    env.reset(options={"task": levels.task_index(level, 0)})
    theirs = ours = 0.0
    for seed in range(SEEDS):
        task = levels.task_index(level, seed)
        theirs += seconds(lambda: raw.reset(seed=seed))  # noqa: B023
        ours += seconds(lambda: env.reset(options={"task": task}))  # noqa: B023
    print(f"{level}: reset {ours / SEEDS * 1e3:.2f} ms, minigrid {theirs / SEEDS * 1e3:.2f} ms")
    assert ours / theirs <= 2


@pytest.mark.parametrize("level", levels.NAMES)
def test_primitive_step(level: str, env: BabyAIEnv) -> None:
    """The same turns and moves in both, chosen so that nothing is refused."""
    rng = random.Random(level)
    theirs = ours = 0.0
    steps = 0
    raw, _ = simulator.make_level(level, 0)
    env.reset(options={"task": levels.task_index(level, 0)})
    while steps < STEPS:
        step = int(rng.random() * 3)
        if step == planner.FORWARD and not planner.passable(env._known.cells[env._known.front]):
            step = planner.LEFT
        theirs += seconds(lambda: raw.step(step))  # noqa: B023
        ours += seconds(lambda: env.step(MOVES[step]))  # noqa: B023
        steps += 1
        if env._outcome.end:
            raw, _ = simulator.make_level(level, steps)
            env.reset(options={"task": levels.task_index(level, steps)})
    print(f"{level}: {steps / ours:.0f} steps/s, minigrid {steps / theirs:.0f} steps/s")
    assert theirs / ours >= 0.5


@pytest.mark.parametrize("level", levels.NAMES)
def test_planned_action(level: str, env: BabyAIEnv) -> None:
    """What a planned action takes beyond minigrid's own steps."""
    rng = random.Random(level)
    beyond: list[float] = []
    seed = 0
    planned = [verb("", "").split()[0] for verb in grammar.PLANNED]
    while len(beyond) < PLANNED and seed < 200:
        env.reset(options={"task": levels.task_index(level, seed)})
        simulated, step = [0.0], env._known.level.step

        def timed(action: int, step: Any = step, simulated: list[float] = simulated) -> Any:
            start = time.process_time()
            result = step(action)
            simulated[0] += time.process_time() - start
            return result

        env._known.level.step = timed
        for _ in range(10):
            simulated[0] = 0.0
            choices = [a for a in env.available_actions() if a.split()[0] in planned and a[-1].isdigit()]
            action = choices[int(rng.random() * len(choices))] if choices else grammar.turn_left()
            spent = seconds(lambda: env.step(action))  # noqa: B023
            if choices:
                beyond.append(spent - simulated[0])
            if env._outcome.end:
                break
        seed += 1
    print(
        f"{level}: planned action, beyond minigrid's steps: median {statistics.median(beyond) * 1e3:.2f} ms, "
        f"largest {max(beyond) * 1e3:.2f} ms"
    )
    assert statistics.median(beyond) < 1e-3


@pytest.mark.timeout(1_200)
def test_memory_stays_flat_over_episodes(env: BabyAIEnv) -> None:
    """A new task each episode."""

    def episodes(first: int) -> int:
        for number in range(first, first + 2_500):
            env.reset(options={"task": number})
            for action in (env.oracle_action(), "check available actions", "turn left"):
                if action is not None and not env._outcome.end:
                    env.step(action)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = episodes(0)
        after = episodes(2_500)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, f"{after - before} bytes more after 2,500 further episodes"
