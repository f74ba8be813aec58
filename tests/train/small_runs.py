"""Settings of small runs in which every number is reproducible, and what tests read of their folders."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM

from agentgym_train.terminal import Terminal
from tests.train.letters_env import LETTERS_ID

LETTERS = f"tests.train.letters_env:{LETTERS_ID}"  # found by its module, so that a process of its own can make it


def settings(tiny_path: Path, run: Path, **changes: Any) -> dict[str, Any]:
    """What all kinds of run share; a change that is a mapping is put over what is there."""
    plain: dict[str, Any] = {
        "run_dir": str(run),
        "checkpoint_every": 2,
        "env": {"id": LETTERS},
        "model": {"path": str(tiny_path), "device": "cpu"},
        "rollout": {"max_reply_tokens": 8, "precision": "float32", "deterministic": True},
        "optimiser": {"lr": 3e-3, "warmup_steps": 2, "precision": "float32"},
        "evaluate": {"tasks": 3, "samples": 4, "horizon": 2},
    }
    for name, value in changes.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) and name != "horizon" else value
    return plain


def curve_of(run: Path, name: str) -> list[tuple[int, float]]:
    """The steps and values that TensorBoard shows under a name."""
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def rows_of(run: Path, phase: str = "", name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [row for row in rows if phase in ("", row["phase"])]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    return dict(AutoModelForCausalLM.from_pretrained(checkpoint).state_dict())


def assert_same_run(run: Path, expected: Path) -> None:
    """Asserts that two runs have the same rows but for times, the same episodes and the same weights."""

    def timeless(path: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "time" and not k.startswith("seconds")} for row in rows_of(path)]

    assert timeless(run) == timeless(expected)
    assert rows_of(run, name="trajectories.jsonl") == rows_of(expected, name="trajectories.jsonl")
    mine, theirs = weights_of(run), weights_of(expected)
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Sends this process a real SIGINT when the line of a step is shown, once so many are."""
    shown = 0

    class Watched(Terminal):
        def step(self, row: dict[str, Any], steps: int) -> None:
            nonlocal shown
            super().step(row, steps)
            shown += 1
            if shown == after:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("agentgym_train.commands.Terminal", Watched)
