"""What a run's folder does when the disk is full, which models it keeps, and what else gets its numbers."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agentgym_train.config import from_dict
from agentgym_train.loop import train
from agentgym_train.watchdog import Watchdog
from tests.train.test_runs import LETTERS, ROOT, assert_same_run, rows_of, settings, steps_of

QUICK: dict[str, Any] = {
    "steps": 3,
    "horizon": 2,
    "checkpoint_every": 1,
    "evaluate": {"every": 1, "at_start": False, "tasks": 1},
}


def limited(
    run: Path, arguments: list[str], largest_file: int, command: str = "train"
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process whose files cannot grow beyond a size, as on a disk that is full."""
    return subprocess.run(
        [sys.executable, "-m", "agentgym_train.cli", command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file)),
    )


def test_a_full_disk_ends_a_run_in_one_line_and_it_goes_on_when_there_is_space(tiny_path: Path, tmp_path: Path) -> None:
    expected, run, recipe = tmp_path / "straight", tmp_path / "run", tmp_path / "recipe.json"
    train(from_dict(settings(tiny_path, expected, **QUICK)))
    recipe.write_text(json.dumps(settings(tiny_path, run, **QUICK)))
    largest = max(file.stat().st_size for file in expected.glob("checkpoints/*/*"))
    # The weights fit, the state of the optimiser, which is larger, does not.
    ended = limited(run, ["--recipe", str(recipe)], largest - 1024)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert f"{run} cannot be written to" in line
    assert "step-000000-train stands" in line
    assert not list(run.rglob("*partial*"))

    again = limited(run, ["--resume", str(run)], largest + 1024)
    assert again.returncode == 0, again.stderr
    assert steps_of(run) == [0, 1, 2]
    assert_same_run(run, expected)


def test_logs_that_cannot_grow_end_a_run_in_one_line(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--model.path", str(tiny_path), "--env.id", LETTERS, "--evaluate.samples", "8"]
    ended = limited(run, ["--run-dir", str(run), *options], 8 << 10, "eval")
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"error: {run} cannot be written to" in ended.stderr
    again = limited(run, ["--resume", str(run)], 8 << 20, "eval")
    assert again.returncode == 0, again.stderr


def test_the_model_of_the_best_evaluation_is_kept(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = train(from_dict({**settings(tiny_path, run, **QUICK), "keep_best": True}))
    assert summary["best"] == str(run / "best")
    evaluations = [row for row in rows_of(run) if row["phase"] == "eval"]
    assert [row["name"] for row in evaluations] == ["between", "between", "after"]
    best = max(evaluations, key=lambda row: row["success/mean"])  # the first one of equal ones
    assert json.loads((run / "best" / "evaluation.json").read_text()) == best
    assert load_file(run / "best" / "model.safetensors")
    assert not (tmp_path / "run" / "best-replaced").exists()


def test_weights_and_biases_gets_the_numbers(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    train(from_dict({**settings(tiny_path, run, steps=1), "wandb": "agentgym-tests"}))
    (log,) = (run / "wandb").glob("offline-run-*/*.wandb")
    content = log.read_bytes()
    for name in (b"train/reward/mean", b"warm_start/loss", b"eval/success/mean", b"train/step"):
        assert name in content, name


def test_a_wait_that_is_too_long_is_told_with_the_stacks(tmp_path: Path) -> None:
    told: list[str] = []
    with Watchdog(0.2, told.append, tmp_path / "stalls.txt") as watchdog:
        with watchdog.waiting(lambda: "nothing"):
            pass
        with watchdog.waiting(lambda: "environment 3 (letters_1, turn 2)"):
            deadline = time.monotonic() + 20
            while len(told) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
    assert all("environment 3 (letters_1, turn 2)" in line for line in told)
    assert len(told) == 2  # again at twice the time
    stacks = (tmp_path / "stalls.txt").read_text()
    assert "test_a_wait_that_is_too_long_is_told_with_the_stacks" in stacks


def test_a_watchdog_that_is_off_has_no_thread(tmp_path: Path) -> None:
    with Watchdog(0, print, tmp_path / "stalls.txt") as watchdog, watchdog.waiting(lambda: "x"):
        pass
    assert os.listdir(tmp_path) == []
