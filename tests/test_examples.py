"""The examples run as their own docstrings say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str, typed: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_oracle_plays_textcraft() -> None:
    assert "success: score 1 after" in run("play_textcraft.py", "--oracle")


def test_a_person_plays_textcraft() -> None:
    printed = run("play_textcraft.py", "--id", "AgentGym/TextCraft-Depth1-v0", typed="dance\n" * 100)
    assert "Could not execute dance" in printed
    assert "turn limit: score 0 after 100 turns" in printed


@pytest.mark.parametrize("turns", [2])
def test_a_model_is_evaluated(turns: int) -> None:
    printed = run("evaluate_model.py", "--tasks", "2", "--turns", str(turns))
    assert printed.count(f"{turns} turns") == 2
    assert "on 2 tasks" in printed


def test_a_training_loop_of_ones_own(tmp_path: Path) -> None:
    sizes = ("--steps", "1", "--groups", "1", "--samples", "3", "--turns", "2", "--out", str(tmp_path / "model"))
    printed = run("own_trainer.py", *sizes)
    assert re.search(r"step 1: success 0\.\d\d, \d+ tokens, entropy \d", printed)
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_sb3_learns_with_and_without_a_mask(tmp_path: Path) -> None:
    sizes = ("--steps", "256", "--envs", "2", "--episodes", "4", "--out", str(tmp_path / "results.jsonl"))
    run("sb3_ppo.py", "--task", "TextCraft", *sizes)
    run("sb3_ppo.py", "--task", "GoToObj", "--primitive", "--processes", *sizes)
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(result["task"], result["steps"]) for result in results] == [("TextCraft", 256), ("GoToObj", 256)]
    assert all(0 <= result["trained"] <= 1 for result in results)


def test_ppo_in_one_file() -> None:
    printed = run("cleanrl_ppo.py", "--total-timesteps", "512", "--num-envs", "4", "--num-steps", "64")
    assert "update 2: " in printed
