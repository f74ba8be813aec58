"""Play action sequences in SciWorld or in the stock package, in a process of its own; prints what it took as JSON.

`python -m benchmarks.sciworld_play KIND ENVS ENVS_PER_JVM EPISODES WARM_UP_STEPS` with KIND `ours` or `stock`,
and the sequences on its standard input: a JSON list of task, variation and actions.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

# What a player is: start an episode, take a step, end everything; and the ids of its Java processes.
Player = tuple[Callable[[str, int], Any], Callable[[str], Any], Callable[[], Any], Callable[[], int]]


def gold_paths(count: int) -> list[tuple[str, int, list[str]]]:
    """Variations of AgentGym's tasks in turn, with actions that solve them."""
    from agentgym_envs.sciworld import tasks
    from agentgym_envs.sciworld.oracle import solution

    env = _make(1)
    families = [family for family in tasks.FAMILIES if family.subset not in tasks.LEFT_OUT_BY_AGENTGYM]
    found = []
    for number in range(count):
        family = families[number % len(families)]
        variation = number // len(families) * 7 % family.variations
        env.reset(seed=0, options={"task": tasks.index_of(family.name, variation)})
        path = solution(env._host, env._variation)
        found.append((family.name, variation, list(path or ())))
    env.close()
    return found


def _make(envs_per_jvm: int) -> Any:
    import gymnasium

    import agentgym_envs  # noqa: F401 (registers the ids)

    return cast(Any, gymnasium.make("AgentGym/SciWorld-v0", envs_per_jvm=envs_per_jvm).unwrapped)


def ours(envs_per_jvm: int) -> Player:
    from agentgym_envs.sciworld import tasks

    env = _make(envs_per_jvm)

    def begin(name: str, variation: int) -> None:
        env.reset(seed=0, options={"task": tasks.index_of(name, variation)})

    return begin, env.step, env.close, lambda: int(env._host.jvm.pid)


def stock() -> Player:
    from scienceworld import ScienceWorldEnv

    env = ScienceWorldEnv("", envStepLimit=1_000)

    def begin(name: str, variation: int) -> None:
        env.load(name, variation, "")
        env.reset()

    return begin, env.step, env.close, lambda: int(env._gateway.java_process.pid)


def pss_mb(pids: set[int]) -> float:
    """Memory of processes, shared pages divided among those that share them."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def main(kind: str, envs: int, envs_per_jvm: int, episodes: int, warm_up: int, paths: list[Any]) -> dict[str, Any]:
    """Play the paths in turn in each environment, one thread for each, after so many steps of warm-up in each."""
    players = [stock() if kind == "stock" else ours(envs_per_jvm) for _ in range(envs)]
    steps, step_seconds, reset_seconds = [0] * envs, [0.0] * envs, [0.0] * envs
    memory: list[tuple[int, float]] = []

    def pids() -> set[int]:
        return {os.getpid(), *(pid() for *_, pid in players)}

    def play(number: int, measured: bool) -> None:
        begin, step, _, _ = players[number]
        done = 0
        for episode in range(episodes) if measured else itertools.count():
            name, variation, path = paths[(episode + number) % len(paths)]
            since = time.perf_counter()
            begin(name, variation)
            ready = time.perf_counter()
            for action in path:
                step(action)
            done += len(path)
            if measured:
                reset_seconds[number] += ready - since
                step_seconds[number] += time.perf_counter() - ready
                steps[number] += len(path)
                if envs == 1 and episode % 10 == 0:
                    memory.append((episode, pss_mb(pids())))
            elif done >= warm_up:
                break

    for measured in (False, True) if warm_up else (True,):
        threads = [threading.Thread(target=play, args=(n, measured)) for n in range(envs)]
        since = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - since
    share = sum(step_seconds) / (sum(step_seconds) + sum(reset_seconds))
    result = {
        "steps": sum(steps),
        # In threads, resets of one run beside steps of others: their share of the time is taken off.
        "steps/s": sum(steps) / (wall * share),
        "reset ms": sum(reset_seconds) / (envs * episodes) * 1000,
        "PSS MB": pss_mb(pids()),
        "memory": memory,
    }
    for _, _, close, _ in players:
        close()
    return result


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    envs, envs_per_jvm, episodes, warm_up = map(int, numbers)
    print(json.dumps(main(kind, envs, envs_per_jvm, episodes, warm_up, json.loads(sys.stdin.read()))))
