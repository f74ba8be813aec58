"""WebArena: how long resets, steps and forks take, and what many environments in one process cost.

What is asserted are ratios of things run side by side; times in milliseconds stand in the report alone, with the
memory, because they say as much of the machine as of the code.
"""

import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import pytest

from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.verify import any_action

pytestmark = pytest.mark.timeout(3_600)

MANY = 16
TURNS = 6


def memory_mb() -> float:
    """Proportional set size of this process and all that it started, in MB."""
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20


def milliseconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def told(request: Any, **found: float) -> None:
    for name, value in found.items():
        request.node.user_properties.append((name, round(value, 2)))
        print(f"{name}: {value:.1f}")


@pytest.fixture
def env() -> Any:
    env = WebArenaEnv(split="all")
    env.reset(seed=0)
    yield env
    env.close()


def test_resets_and_steps(env: WebArenaEnv, request: Any) -> None:
    resets, steps, idle, touched = [], [], [], []
    rng = random.Random("benchmark")
    for seed in range(24):
        resets.append(milliseconds(partial(env.reset, seed=seed)))
        for _ in range(TURNS):
            action = any_action(env._observation, rng)
            steps.append(milliseconds(partial(env.step, action)))
        env._held.close_session()
        tenant = env._held.tenant()
        touched.append(milliseconds(partial(tenant.reset, {})))
        idle.append(milliseconds(partial(tenant.reset, {})))
    told(
        request,
        reset_ms=statistics.median(resets),
        step_ms=statistics.median(steps),
        sites_reset_ms=statistics.median(touched),
        sites_reset_max_ms=max(touched),
        untouched_sites_reset_ms=statistics.median(idle),
    )
    # Resetting the sites is a small part of a reset: most of it is the browser's.
    assert statistics.median(touched) < 0.5 * statistics.median(resets)


def test_many_environments_in_one_process(request: Any) -> None:
    """The same walks, one after the other in one environment, and step by step in as many environments as walks."""

    def seconds(env: WebArenaEnv, rng: random.Random) -> float:
        return milliseconds(lambda: env.step(any_action(env._observation, rng))) / 1e3

    before = memory_mb()
    envs = [WebArenaEnv(split="all")]
    try:
        alone = 0.0
        for number in range(MANY):
            envs[0].reset(seed=number)
            rng = random.Random(f"walk {number}")
            alone += sum(seconds(envs[0], rng) for _ in range(TURNS))
        alone_mb = memory_mb() - before
        envs += [WebArenaEnv(split="all") for _ in range(MANY - 1)]
        rngs = [random.Random(f"walk {number}") for number in range(MANY)]
        for number, env in enumerate(envs):
            env.reset(seed=number)
        together = sum(seconds(*pair) for _ in range(TURNS) for pair in zip(envs, rngs, strict=True))
        each_mb = (memory_mb() - before) / MANY
    finally:
        for env in envs:
            env.close()
    steps = MANY * TURNS
    told(request, one_per_s=steps / alone, many_per_s=steps / together, one_mb=alone_mb, each_of_many_mb=each_mb)
    assert together < alone / 0.7
    assert each_mb < 150


def test_forks_beside_replays(env: WebArenaEnv, request: Any) -> None:
    """Eight siblings of a state that is eight pages deep, by its saved state and by replay of the actions."""
    env.reset(options={"init": _forum()})
    for number in range(8):
        env.step(f"goto [http://reddit/?page={number}]")
    saved = env.snapshot()
    siblings = [WebArenaEnv(split="all") for _ in range(4)]
    try:
        cheap = sum(milliseconds(partial(some.restore, saved)) for some in siblings)
        replay = sum(milliseconds(partial(_replay, some, saved)) for some in siblings)
    finally:
        for some in siblings:
            some.close()
    told(request, fork_ms=cheap / 4, replay_ms=replay / 4)
    assert replay > 2 * cheap


def _forum() -> dict[str, Any]:
    return {"intent": "Look around.", "sites": ["reddit"], "eval": {"answer": {"type": "text", "value": "nothing"}}}


def _replay(env: WebArenaEnv, saved: bytes) -> None:
    record = json.loads(saved)
    del record["state"]
    env.restore(json.dumps(record).encode())
