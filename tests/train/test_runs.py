"""Whole runs of the tiny model: what they leave behind, that they learn, stop cleanly and resume exactly."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.cli import main
from agentgym_train.config import Config, ConfigError, from_dict
from agentgym_train.engines import EngineError
from agentgym_train.loop import train
from agentgym_train.models import load_model, load_tokenizer
from agentgym_train.run_folder import RunFolder
from agentgym_train.update import NumericsError
from tests.train.letters_env import HOPELESS_ID, LETTERS_ID, UNSOUND_ID
from tests.train.small_runs import curve_of

STEPS = 8
ROOT = Path(__file__).resolve().parents[2]
# Found by its module, so that a process of its own can make it too.
LETTERS = f"tests.train.letters_env:{LETTERS_ID}"


def settings(tiny_path: Path, run: Path, **changes: Any) -> dict[str, Any]:
    """A run of some seconds in which every number is reproducible."""
    plain: dict[str, Any] = {
        "run_dir": str(run),
        "steps": STEPS,
        "horizon": {"kind": "staged", "stages": [[0.0, 2], [0.5, 3]]},
        "checkpoint_every": 2,
        "env": {"id": LETTERS},
        "model": {"path": str(tiny_path), "device": "cpu"},
        "warm_start": {"tasks": 3, "batch_size": 1, "lr": 1e-3},
        "rollout": {
            "tasks_per_step": 3,
            "samples_per_task": 4,
            "max_reply_tokens": 8,
            "precision": "float32",
            "deterministic": True,
        },
        "algorithm": {"epochs": 2, "kl_coef": 0.01},
        "optimiser": {"lr": 1e-3, "precision": "float32"},
        "evaluate": {"tasks": 2, "samples": 4, "horizon": 3, "every": 2},
    }
    for name, value in changes.items():
        plain[name] = {**plain[name], **value} if isinstance(value, dict) and name != "horizon" else value
    return plain


def rows_of(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    path = run / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_times(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("seconds/")} for row in rows]


def steps_of(run: Path, phase: str = "train") -> list[int]:
    return [row["step"] for row in rows_of(run) if row["phase"] == phase]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    return dict(AutoModelForCausalLM.from_pretrained(checkpoint).state_dict())


def assert_same_run(run: Path, expected: Path) -> None:
    assert without_times(rows_of(run)) == without_times(rows_of(expected))
    assert rows_of(run, "trajectories.jsonl") == rows_of(expected, "trajectories.jsonl")
    mine, theirs = weights_of(run), weights_of(expected)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def straight(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is never interrupted."""
    run = tmp_path_factory.mktemp("straight") / "run"
    train(from_dict(settings(tiny_path, run)))
    return run


class Process:
    """`agentgym train` as a process of its own, in a process group of its own."""

    def __init__(self, run: Path, arguments: Sequence[str], reader_dies: bool = False) -> None:
        self.run = run
        self.output = run.with_suffix(".txt")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentgym_train.cli", "train", *arguments],
                cwd=ROOT,
                stdout=subprocess.PIPE if reader_dies else output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self.process.stdout is not None:
            with self.process.stdout as pipe:
                assert pipe.readline().startswith(b"run folder")

    def stop(self, after: int, number: signal.Signals, phase: str = "train") -> int:
        """Sends a signal once so many rows are logged; returns the exit code."""
        self.wait_for(after, phase)
        self.process.send_signal(number)
        return self.end()

    def wait_for(self, after: int, phase: str = "train") -> None:
        """Waits until so many rows are logged."""
        deadline = time.monotonic() + 120
        while sum(row.get("phase") == phase for row in self._complete_rows()) < after:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(self.output.read_text())
            time.sleep(0.005)

    def end(self) -> int:
        """Waits for the end; returns the exit code."""
        try:
            code = self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait(60)
        group = [p.pid for p in psutil.process_iter() if _group(p.pid) == self.process.pid]
        assert group == []
        return code

    def _complete_rows(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def start(tiny_path: Path, run: Path, reader_dies: bool = False, **changes: Any) -> Process:
    recipe = run.with_suffix(".json")
    recipe.write_text(json.dumps(settings(tiny_path, run, **changes)))
    return Process(run, ["--recipe", str(recipe)], reader_dies)


@pytest.fixture
def saved(model: PreTrainedModel, tiny_path: Path, tmp_path: Path) -> Path:
    """A run that has a checkpoint and a line in each log."""
    folder = RunFolder(tmp_path / "run", from_dict(settings(tiny_path, tmp_path / "run")), resume=False)
    folder.log({"step": 0, "phase": "warm_start", "time": 0.0, "loss": 1.0})
    folder.log_trajectories([{"step": 0}])
    folder.progress.step = 1
    folder.save_checkpoint(
        model, load_tokenizer(str(tiny_path)), {"optimiser": torch.optim.AdamW(model.parameters()).state_dict()}
    )
    folder.close()
    return tmp_path / "run"


def test_a_run_from_the_command_line_leaves_everything_behind(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        "env: {id: AgentGym/TextCraft-v0, subsets: [Depth1]}\n"
        "warm_start: {tasks: 6, batch_size: 2, lr: 1e-2, epochs: 2}\n"
        "rollout: {tasks_per_step: 2, samples_per_task: 4, max_reply_tokens: 12}\n"
        "evaluate: {tasks: 3, samples: 2, horizon: 3}\n"
        "horizon: {kind: linear, start: 2, increment: 1, every: 1, cap: 3}\n"
    )
    arguments = ["--recipe", str(recipe), "--model.path", str(tiny_path), "--run-dir", str(run), "--steps", "2"]
    assert main(["train", *arguments]) == 0

    shown = capsys.readouterr().out
    assert "warm start: 6 oracle episodes" in shown
    assert "2/2" in shown
    assert "held-out success" in shown

    rows = rows_of(run)
    assert [(row["phase"], row["step"], row.get("name")) for row in rows] == [
        *(("warm_start", step, None) for step in range(6)),
        ("eval", 0, "before"),
        ("train", 0, None),
        ("train", 1, None),
        ("eval", 2, "after"),
    ]
    assert rows[5]["loss"] < rows[0]["loss"]
    assert [row["horizon"] for row in rows if row["phase"] == "train"] == [2, 3]
    assert {row["horizon"] for row in rows if row["phase"] == "eval"} == {3}

    episodes = rows_of(run, "trajectories.jsonl")
    assert len(episodes) == 2 * 8 + 2 * 6
    assert {episode["subset"] for episode in episodes} == {"Depth1"}
    held_out = {episode["task"] for episode in episodes if episode["phase"] == "eval"}
    assert len(held_out) == 3
    assert not held_out & {episode["task"] for episode in episodes if episode["phase"] == "train"}

    for name in ("warm_start/loss", "eval/success/mean", "train/reward/mean"):
        assert curve_of(run, name)
    assert curve_of(run, "train/horizon") == [(0, 2), (1, 3)]

    (checkpoint,) = (run / "checkpoints").iterdir()
    model, tokenizer = load_model(str(checkpoint)), load_tokenizer(str(checkpoint))
    assert Chat(tokenizer).prompt("i", "o") == Chat(load_tokenizer(str(tiny_path))).prompt("i", "o")
    assert not torch.equal(*(next(iter(m.parameters())) for m in (model, load_model(str(tiny_path)))))

    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["steps"] == 2
    assert summary["horizon_eval"] == 3
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    assert set(summary["seconds"]) == {"warm_start", "evaluate", "rollout", "reference", "update"}
    assert "AgentGym/TextCraft-v0" in (run / "report.html").read_text()
    assert not list(run.rglob("*partial*"))


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++", "ppo"])
def test_training_raises_the_reward(tiny_path: Path, tmp_path: Path, name: str) -> None:
    """The loss's sign, the advantages, the packing and the engine's new weights must all be right for this."""
    plain = settings(
        tiny_path,
        tmp_path / "run",
        steps=25,
        horizon=2,
        env={"subsets": ["Vowels"]},
        warm_start={"kind": "none"},
        rollout={"samples_per_task": 8},
        algorithm={"name": name, "epochs": 1, "kl_coef": 1e-3, "critic_lr": 1e-3},
        optimiser={"lr": 3e-3},  # seeds and processors differ: with 1e-2 some runs collapsed
        evaluate={"tasks": 1, "samples": 8, "horizon": 2, "every": 0},
    )
    summary = train(from_dict(plain))
    rewards = [row["reward/mean"] for row in rows_of(tmp_path / "run") if row["phase"] == "train"]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert last > max(2 * first, 0.15)
    assert "gain" in summary


def test_a_run_with_a_critic_goes_on_exactly(tiny_path: Path, tmp_path: Path) -> None:
    short = {"steps": 2, "horizon": 2, "algorithm": {"name": "ppo"}, "evaluate": {"at_start": False, "every": 0}}
    train(from_dict(settings(tiny_path, tmp_path / "run", **short)))
    train(from_dict(settings(tiny_path, tmp_path / "straight", **{**short, "steps": 4})))
    train(from_dict(settings(tiny_path, tmp_path / "run", **{**short, "steps": 4})), resume=True)
    mine, theirs = weights_of(tmp_path / "run"), weights_of(tmp_path / "straight")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    (checkpoint / "critic.pt").unlink()
    with pytest.raises(ConfigError, match=r"critic\.pt cannot be read, so the run cannot be continued"):
        train(from_dict(settings(tiny_path, tmp_path / "run", **{**short, "steps": 5})), resume=True)


def test_an_adaptive_horizon_is_raised_in_a_run_and_goes_on_in_the_next(tiny_path: Path, tmp_path: Path) -> None:
    adaptive = {"kind": "adaptive", "start": 1, "increment": 1, "cap": 3, "window": 4, "tolerance": 0.9}
    plain = settings(
        tiny_path,
        tmp_path / "run",
        steps=6,
        horizon=adaptive,
        warm_start={"kind": "none"},
        algorithm={"name": "reinforce++"},  # it updates at every step
        optimiser={"lr": 1e-5},
        evaluate={"at_start": False, "every": 0},
    )
    train(from_dict(plain))
    train(from_dict({**plain, "steps": 9}), resume=True)
    rows = [row for row in rows_of(tmp_path / "run") if row["phase"] == "train"]
    assert [row["horizon"] for row in rows] == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_an_adaptive_horizon_is_raised_where_nothing_can_be_learnt(tiny_path: Path, tmp_path: Path) -> None:
    """No group has variance, so there is no update and no entropy, but success has settled."""
    changes = {
        "horizon": {"kind": "adaptive", "start": 1, "increment": 1, "cap": 2, "window": 4},
        "warm_start": {"kind": "none"},
        "evaluate": {"at_start": False, "every": 0},
        "env": {"id": f"tests.train.letters_env:{HOPELESS_ID}"},
    }
    train(from_dict(settings(tiny_path, tmp_path / "run", steps=5, **changes)))
    rows = [row for row in rows_of(tmp_path / "run") if row["phase"] == "train"]
    assert not any("entropy" in row for row in rows)
    assert [row["horizon"] for row in rows] == [1, 1, 1, 1, 2]


def test_groups_without_variance_are_sampled_again_if_asked_for(tiny_path: Path, tmp_path: Path) -> None:
    train(
        from_dict(
            settings(
                tiny_path,
                tmp_path / "run",
                steps=2,
                warm_start={"kind": "none"},
                rollout={"tasks_per_step": 2, "samples_per_task": 2},
                algorithm={"resample_rounds": 2},
                evaluate={"at_start": False, "every": 0},
            )
        )
    )
    rows = [row for row in rows_of(tmp_path / "run") if row["phase"] == "train"]
    rounds = [row["groups/total"] // 2 for row in rows]
    assert max(rounds) > 1  # the tiny model writes few of the wanted letters
    for row, count in zip(rows, rounds, strict=True):
        useful = row["groups/total"] - row["groups/zero_variance"]
        assert 1 <= count <= 3
        assert useful >= 2 or count == 3
    episodes = [e for e in rows_of(tmp_path / "run", "trajectories.jsonl") if e["phase"] == "train"]
    for step, count in enumerate(rounds):
        groups = [(e["task"], e["seed"], e["sample"]) for e in episodes if e["step"] == step]
        assert len(set(groups)) == len(groups) == 4 * count


def test_the_curriculum_reaches_the_episodes(straight: Path) -> None:
    episodes = rows_of(straight, "trajectories.jsonl")
    by_step = {
        step: {(e["horizon"], len(e["turns"])) for e in episodes if e["phase"] == "train" and e["step"] == step}
        for step in range(STEPS)
    }
    horizons = [{horizon for horizon, _ in by_step[step]} for step in range(STEPS)]
    assert horizons == [{2}] * (STEPS // 2) + [{3}] * (STEPS // 2)
    assert all(turns <= horizon for seen in by_step.values() for horizon, turns in seen)
    assert {turns for _, turns in by_step[STEPS - 1]} >= {3}


def test_the_numbers_of_a_step(straight: Path) -> None:
    episodes = rows_of(straight, "trajectories.jsonl")
    for row in rows_of(straight):
        if row["phase"] != "train":
            continue
        own = [episode for episode in episodes if episode["phase"] == "train" and episode["step"] == row["step"]]
        assert len(own) == 12
        groups = {(episode["task"], episode["seed"]) for episode in own}
        assert row["groups/total"] == len(groups) == 3
        assert len({episode["prompt"] for episode in own}) == 3
        assert row["reward/mean"] == pytest.approx(sum(episode["reward"] for episode in own) / 12)
        turns = [turn for episode in own for turn in episode["turns"]]
        assert row["tokens/sampled"] == sum(turn["stop"] - turn["start"] for turn in turns)
        assert row["valid_action_share"] == pytest.approx(sum(turn["valid"] for turn in turns) / len(turns))
        assert row["cut_reply_share"] == pytest.approx(sum(turn["finish"] == "length" for turn in turns) / len(turns))
        assert row["tokens/trained"] <= row["tokens/sampled"]
        assert row["padding_share"] == 0.0
        assert row["shared_prompt_share"] > 0.3
        assert row["engine_difference"] < 1e-3
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def test_another_seed_is_another_run(tiny_path: Path, tmp_path: Path, straight: Path) -> None:
    train(from_dict(settings(tiny_path, tmp_path / "run", seed=1, steps=1)))
    mine, theirs = (
        [e for e in rows_of(run, "trajectories.jsonl") if e["phase"] == "train" and e["step"] == 0]
        for run in (tmp_path / "run", straight)
    )
    assert [e["task"] for e in mine] != [e["task"] for e in theirs]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_from_which_the_run_goes_on_exactly(
    tiny_path: Path, tmp_path: Path, straight: Path, number: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    stopped = start(tiny_path, run)
    # One signal comes in the middle of training (most likely in an evaluation), the other in the warm start.
    phase, after = ("train", 2) if number == signal.SIGTERM else ("warm_start", 1)
    assert stopped.stop(after, number, phase) == code, stopped.output.read_text()
    shown = stopped.output.read_text()
    assert f"agentgym train --resume {run}" in shown
    assert "Traceback" not in shown
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name.endswith(phase)
    assert 0 < len(steps_of(run, phase))
    assert steps_of(run) == list(range(len(steps_of(run))))
    assert len(steps_of(run)) < STEPS

    assert main(["train", "--resume", str(run)]) == 0
    assert_same_run(run, straight)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


def test_a_killed_run_goes_on_from_its_last_checkpoint(tiny_path: Path, tmp_path: Path, straight: Path) -> None:
    run = tmp_path / "run"
    killed = start(tiny_path, run)
    assert killed.stop(3, signal.SIGKILL) == -signal.SIGKILL
    assert len(steps_of(run)) >= 3  # the checkpoint holds the first two
    assert list((run / "checkpoints").glob("step-*-train"))
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "phase": "tra')  # what a crash in the middle of a line leaves

    assert main(["train", "--resume", str(run)]) == 0
    assert steps_of(run) == list(range(STEPS))
    assert_same_run(run, straight)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tiny_path: Path, tmp_path: Path, straight: Path) -> None:
    run = tmp_path / "run"
    assert start(tiny_path, run).stop(1, signal.SIGKILL, "warm_start") == -signal.SIGKILL
    assert main(["train", "--resume", str(run)]) == 0
    assert_same_run(run, straight)


def test_a_reader_of_the_output_that_dies_does_not_end_the_run(tiny_path: Path, tmp_path: Path, straight: Path) -> None:
    """In `agentgym train ... 2>&1 | tee log`, Ctrl-C ends both processes, and `tee` is the faster one."""
    run = tmp_path / "run"
    assert start(tiny_path, run, reader_dies=True).stop(1, signal.SIGINT, "warm_start") == 130
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert list((run / "checkpoints").glob("step-*-warm_start"))
    assert Process(run, ["--resume", str(run)], reader_dies=True).end() == 0
    assert_same_run(run, straight)


def test_a_folder_that_a_process_trains_in_is_refused_to_others(
    tiny_path: Path, tmp_path: Path, straight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    first = start(tiny_path, run)
    first.wait_for(1, "warm_start")
    assert main(["train", "--resume", str(run)]) == 1
    assert f"another process is training in {run}" in capsys.readouterr().err
    assert first.end() == 0, first.output.read_text()
    assert_same_run(run, straight)


def test_a_finished_run_goes_on_to_more_steps(tiny_path: Path, tmp_path: Path) -> None:
    long, run = tmp_path / "long", tmp_path / "run"
    changes = {"horizon": 2, "evaluate": {"every": 0}}
    expected = train(from_dict(settings(tiny_path, long, steps=4, **changes)))
    train(from_dict(settings(tiny_path, run, steps=2, **changes)))
    assert main(["train", "--resume", str(run), "--steps", "4"]) == 0
    assert main(["train", "--resume", str(run), "--steps", "3"]) == 1

    mine, theirs = (without_times(rows_of(path)) for path in (run, long))
    assert [row["step"] for row in mine if row.get("name") == "after"] == [2, 4]
    assert [row for row in mine if (row["step"], row.get("name")) != (2, "after")] == theirs
    assert all(torch.equal(value, weights_of(long)[name]) for name, value in weights_of(run).items())
    summary = json.loads((run / "summary.json").read_text())
    for name in ("steps", "steps_without_update", "before", "after", "gain", "gain_low", "gain_high"):
        assert summary[name] == expected[name], name


def test_a_damaged_log_does_not_end_a_run(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(from_dict(settings(tiny_path, run, steps=1)))
    log = run / "metrics.jsonl"
    log.write_bytes(b"\0" * len(log.read_bytes()))
    assert main(["train", "--resume", str(run)]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert {**summary, "seconds": 0} == {**first, "seconds": 0}


def test_a_log_that_lost_lines_is_not_filled_up(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = saved / "trajectories.jsonl"
    log.write_bytes(b"")
    assert main(["train", "--resume", str(saved)]) == 1
    assert f"{log} has 0 bytes, but 12 when" in capsys.readouterr().err
    assert log.read_bytes() == b""


@pytest.mark.parametrize("name", ["optimiser.pt", "progress.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_damaged_checkpoint_is_refused_in_one_line(
    saved: Path, name: str, missing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (saved / "checkpoints").glob(f"*/{name}")
    if missing:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = (saved / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["train", "--resume", str(saved)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") and str(file.parent) in line for line in errors] == [True]
    assert (saved / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("change", [{"step": "five"}, {"phase": "training"}, {"evaluated": [1]}, {"stage": 2}])
def test_a_progress_that_was_edited_wrongly_is_refused_in_one_line(
    saved: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (saved / "checkpoints").glob("*/progress.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    capsys.readouterr()
    assert main(["train", "--resume", str(saved)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert f"error: {file} cannot be read" in error
    assert next(iter(change)) in error


def test_a_checkpoint_is_never_missing_while_it_is_replaced(
    model: PreTrainedModel, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run", Config(), resume=False)
    optimiser = torch.optim.AdamW(model.parameters())
    tokenizer = load_tokenizer(str(tiny_path))
    folder.save_checkpoint(model, tokenizer, {"optimiser": optimiser.state_dict()})
    found = []
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        found.append(folder.checkpoint)
        result = rename(path, target)
        found.append(folder.checkpoint)
        return result

    monkeypatch.setattr(Path, "rename", watched)
    folder.save_checkpoint(model, tokenizer, {"optimiser": optimiser.state_dict()})  # of the same step
    folder.progress.step = 1
    folder.save_checkpoint(model, tokenizer, {"optimiser": optimiser.state_dict()})
    folder.close()
    assert len(found) == 6
    assert all(checkpoint is not None for checkpoint in found)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001-warm_start"]


def test_an_update_that_is_not_finite_stops_the_run_with_its_batch_saved(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plain = settings(tiny_path, run, optimiser={"lr": 1e20, "warmup_steps": 0})  # the second pass overflows
    with pytest.raises(NumericsError, match=r"step 0: the (loss|gradient's norm) is (nan|inf|-inf)\. The batch is in"):
        train(from_dict(plain))
    saved = json.loads((run / "failed_batch.json").read_text())
    assert saved["step"] == 0
    assert {"task", "tokens", "mask", "logprobs", "prompt_length", "reward"} <= set(saved["batch"][0])
    assert steps_of(run) == []  # no row of zeros
    assert all(torch.isfinite(value).all() for value in weights_of(run).values())


def test_a_warm_start_that_is_not_finite_stops_the_run_with_its_batch_saved(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(NumericsError, match=r"step 1: the (loss|gradient's norm) is"):
        train(from_dict(settings(tiny_path, run, warm_start={"lr": 1e20})))
    assert len(json.loads((run / "failed_batch.json").read_text())["batch"]) == 1


def test_damaged_weights_stop_the_next_rollout(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    recipe = tmp_path / "huge.json"
    changes = {"algorithm": {"epochs": 1}, "optimiser": {"lr": 1e30, "warmup_steps": 0}}
    recipe.write_text(json.dumps(settings(tiny_path, run, **changes)))
    assert main(["train", "--recipe", str(recipe)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "not finite" in line
    assert "failed_batch.json" in line
    saved = json.loads((run / "failed_batch.json").read_text())
    assert saved["step"] == 1
    assert len(saved["episodes"]) == 12
    assert steps_of(run) == [0]


def test_several_scenarios_share_a_run(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    mix = [
        {"id": LETTERS, "subsets": ["Vowels"], "name": "Vowels", "horizon": 2},
        {"id": LETTERS, "subsets": ["Consonants"], "weight": 2, "evaluate_horizon": 1},
    ]
    changes = {"horizon": {"kind": "linear", "start": 1, "increment": 1, "every": 2, "cap": 3}, "tasks": mix}
    plain = settings(tiny_path, run, steps=4, warm_start={"tasks": 1}, evaluate={"tasks": 1, "every": 0}, **changes)
    plain["rollout"]["tasks_per_step"] = 2
    summary = train(from_dict(plain))
    assert summary["env"] == f"{LETTERS}, {LETTERS}"
    rows = [row for row in rows_of(run) if row["phase"] == "train"]
    assert [row.get("Vowels/horizon", 2) for row in rows] == [2] * 4
    second = "tests.train.letters_env:Toy/Letters".rpartition(":")[2]
    assert {row["step"]: row[f"{second}/horizon"] for row in rows if f"{second}/horizon" in row} == dict(
        enumerate([1, 1, 2, 2])
    )
    episodes = rows_of(run, "trajectories.jsonl")
    played = [e for e in episodes if e["phase"] == "train"]
    assert {e["subset"]: e["horizon"] for e in played if e["step"] == 3} == {"Vowels": 2, "Consonants": 2}
    counts = {name: sum(e["subset"] == name for e in played) // 4 for name in ("Vowels", "Consonants")}
    assert counts == {"Vowels": 4, "Consonants": 4}  # what a third comes to in the first eight groups
    assert {e["subset"]: e["horizon"] for e in episodes if e["phase"] == "eval"} == {"Vowels": 3, "Consonants": 1}
    (before, after) = (row for row in rows_of(run) if row["phase"] == "eval")
    assert {"Vowels/success/mean", f"{second}/success/mean"} <= before.keys() & after.keys()
    assert sorted(row["tasks"] for row in (before, after)) == [2, 2]


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ([{"id": LETTERS}, {"id": LETTERS}], r"tasks\[1\] is called 'Toy/Letters' like tasks\[0\]"),
        ([{"id": LETTERS, "weight": 0}], r"tasks\[0\].weight=0"),
        (
            [{"id": LETTERS, "weight": 1e308}, {"id": LETTERS, "name": "second", "weight": 1e308}],
            r"tasks: the weights are too large to be added up",
        ),
        ([{"id": LETTERS, "horizon": {"kind": "linear"}}], r"tasks\[0\].horizon="),
        ([{"id": LETTERS, "subsets": ["Digits"]}], r"tasks\[0\].subsets: "),
    ],
)
def test_a_list_of_scenarios_that_cannot_be_is_refused(
    tiny_path: Path, tmp_path: Path, mix: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(from_dict({**settings(tiny_path, tmp_path / "run"), "tasks": mix}))


def test_too_many_broken_episodes_stop_the_run(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTERS_FAILURES", "1000")
    with pytest.raises(EngineError, match=r"(?s)8 of 8 episodes ended in an error, .*0\.25.*the simulator is broken"):
        train(from_dict(settings(tiny_path, tmp_path / "run", warm_start={"kind": "none"})))


def test_a_few_broken_episodes_are_left_out_of_the_numbers(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setenv("LETTERS_FAILURES", "2")
    evaluate = {"at_start": False, "every": 0}
    train(from_dict(settings(tiny_path, run, steps=1, warm_start={"kind": "none"}, evaluate=evaluate)))
    (row,) = (row for row in rows_of(run) if row["phase"] == "train")
    episodes = [episode for episode in rows_of(run, "trajectories.jsonl") if episode["phase"] == "train"]
    sound = [episode for episode in episodes if episode["end"] != "error"]
    assert row["end/error"] == 2
    assert len(sound) == len(episodes) - 2 == 10
    assert row["reward/mean"] == pytest.approx(sum(episode["reward"] for episode in sound) / 10)
    rewards: dict[str, set[float]] = {}
    for episode in sound:
        rewards.setdefault(episode["task"], set()).add(episode["reward"])
    trained = [episode for episode in sound if len(rewards[episode["task"]]) > 1]
    assert row["groups/zero_variance"] == sum(len(values) == 1 for values in rewards.values())
    assert row["tokens/trained"] == sum(turn["stop"] - turn["start"] for e in trained for turn in e["turns"])
    assert all("the simulator is broken" in episode["error"] for episode in episodes if episode not in sound)


def test_a_reward_that_is_not_finite_is_an_error_of_its_episode(tiny_path: Path, tmp_path: Path) -> None:
    run, evaluate = tmp_path / "run", {"at_start": False, "every": 0}
    changes = {
        "warm_start": {"kind": "none"},
        "evaluate": evaluate,
        "max_error_share": 1.0,
        "env": {"id": f"tests.train.letters_env:{UNSOUND_ID}"},
    }
    train(from_dict(settings(tiny_path, run, steps=1, rollout={"tasks_per_step": 6}, **changes)))
    episodes = [episode for episode in rows_of(run, "trajectories.jsonl") if episode["phase"] == "train"]
    assert {e["task"] for e in episodes if "reward of nan" in e["error"]} == {"letters_0"}
    assert {e["task"] for e in episodes if e["end"] == "error"} == {"letters_0"}


def test_a_task_without_a_sound_episode_is_not_compared(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTERS_FAILURES", "1")
    evaluate = {"tasks": 3, "samples": 1, "every": 0}
    plain = settings(tiny_path, tmp_path / "run", steps=1, warm_start={"kind": "none"}, evaluate=evaluate)
    summary = train(from_dict({**plain, "max_error_share": 0.5}))
    before, after = (row for row in rows_of(tmp_path / "run") if row["phase"] == "eval")
    assert (before["tasks"], after["tasks"]) == (2, 3)
    assert "gain" in summary
