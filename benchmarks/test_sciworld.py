"""SciWorld's speed and memory, side by side in one run with the stock package `scienceworld`.

Both replay the same gold paths, each in a process of its own. Times are of the wall clock: the work is done
in Java processes.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.sciworld_play import gold_paths

ROOT = Path(__file__).parents[1]
PATHS = 60
WARM_UP_STEPS = 500


@functools.cache
def paths() -> str:
    return json.dumps(gold_paths(PATHS))


@functools.cache
def played(kind: str, envs: int = 1, envs_per_jvm: int = 8, episodes: int = PATHS) -> dict[str, Any]:
    numbers = map(str, (envs, envs_per_jvm, episodes, WARM_UP_STEPS))
    command = [sys.executable, "-m", "benchmarks.sciworld_play", kind, *numbers]
    done = subprocess.run(command, cwd=ROOT, input=paths(), capture_output=True, text=True, timeout=3_600, check=False)
    assert done.returncode == 0, done.stderr
    result = cast(dict[str, Any], json.loads(done.stdout.splitlines()[-1]))
    shown = {key: round(value, 1) for key, value in result.items() if key != "memory"}
    print(f"\n{kind}, {envs} environments, {envs_per_jvm} a process:", shown)
    return result


@pytest.mark.timeout(7_200)
def test_one_environment() -> None:
    mine, stock = played("ours", envs_per_jvm=1), played("stock")
    assert mine["steps"] == stock["steps"]
    print("times the steps/s:", mine["steps/s"] / stock["steps/s"])
    print("times as fast a reset:", stock["reset ms"] / mine["reset ms"])
    assert mine["steps/s"] >= 20 * stock["steps/s"]
    assert mine["reset ms"] <= stock["reset ms"] / 2
    assert mine["PSS MB"] < 280


@pytest.mark.timeout(7_200)
def test_eight_environments() -> None:
    one, shared, halves = played("ours", envs_per_jvm=1), played("ours", 8, 8, 15), played("ours", 8, 4, 15)
    stock = played("stock", 8, 1, 4)
    print("eight in one process, of one environment's steps/s:", shared["steps/s"] / one["steps/s"])
    print("two processes of four, of one environment's steps/s:", halves["steps/s"] / one["steps/s"])
    print("eight in one process, of eight stock ones' steps/s:", shared["steps/s"] / stock["steps/s"])
    assert shared["PSS MB"] < 600
    assert shared["steps/s"] >= 0.9 * one["steps/s"]
    assert halves["steps/s"] >= 1.1 * one["steps/s"]
