"""Evaluations: the table by hand, any model and baselines on held-out tasks, and what they leave behind."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agentgym_train.cli import main
from agentgym_train.config import from_dict
from agentgym_train.config_kinds import EvalConfig
from agentgym_train.evaluation import result_rows
from agentgym_train.run_folder import RunFolder
from agentgym_train.statistics import bootstrap
from agentgym_train.trajectory import Episode, Trajectory, Turn
from tests.train.letters_env import LETTERS_ID
from tests.train.small_runs import LETTERS, rows_of, settings

LETTERS_EVAL = ["--env.id", LETTERS_ID, "--evaluate.horizon", "2", "--rollout.max-reply-tokens", "8"]
EXACT = ["--rollout.deterministic", "--rollout.precision", "float32"]


def episode(task: str, subset: str, score: float, end: str = "horizon", turns: int = 2) -> Trajectory:
    taken = [Turn(0, 0, "r", "a", "o", 0.0, True, "stop")] * turns
    return Trajectory(Episode(task, 0, 0, 7, ""), subset=subset, score=score, success=score == 1, end=end, turns=taken)


def test_the_table_by_hand() -> None:
    rows = result_rows(
        [
            episode("a", "Easy", 1.0),
            episode("a", "Easy", 0.0),
            episode("b", "Easy", 0.5, turns=4),
            episode("c", "Hard", 0.0),
            episode("c", "Hard", 1.0, end="error"),
        ]
    )
    easy, hard, together = rows
    assert (easy["subset"], hard["subset"], together["subset"]) == ("Easy", "Hard", "all")
    assert (easy["tasks"], easy["episodes"], easy["errors"]) == (2, 3, 0)
    assert easy["success"] == pytest.approx((0.5 + 0.0) / 2)  # by task first
    assert easy["any"] == 0.5
    assert easy["score"] == pytest.approx((0.5 + 0.5) / 2)
    assert easy["turns"] == pytest.approx(8 / 3)
    assert (hard["success"], hard["episodes"], hard["errors"]) == (0.0, 2, 1)  # an error is not a failure
    assert together["success"] == pytest.approx(0.5 / 3)
    assert {row["horizon"] for row in rows} == {7}
    assert easy["success_low"] == 0.0
    assert easy["success_high"] == 0.5
    assert len(result_rows([episode("a", "Easy", 1.0)])) == 1


def test_the_interval_is_that_of_a_binomial_where_one_is_known() -> None:
    mean, low, high = bootstrap({str(task): float(task % 4 == 0) for task in range(100)})
    assert mean == 0.25
    assert low == pytest.approx(0.25 - 1.96 * (0.25 * 0.75 / 100) ** 0.5, abs=0.02)
    assert high == pytest.approx(0.25 + 1.96 * (0.25 * 0.75 / 100) ** 0.5, abs=0.02)


def test_a_model_is_evaluated_on_all_held_out_tasks(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "eval"
    model = [*EXACT, "--model.path", str(tiny_path), "--evaluate.samples", "2", "--run-dir", str(run)]
    assert main(["eval", *LETTERS_EVAL, *model]) == 0
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith(("scenario", "Toy"))]
    assert len(lines) == 4  # headings, two subsets, all
    assert lines[-1].split()[:6] == ["Toy/Letters", "all", "real", "2", "3", "6"]
    summary = json.loads((run / "summary.json").read_text())
    assert [row["subset"] for row in summary["results"]] == ["Consonants", "Vowels", "all"]
    episodes = rows_of(run, name="trajectories.jsonl")
    assert len(episodes) == 6
    assert {e["horizon"] for e in episodes} == {2}
    mean = sum(e["score"] for e in episodes) / 6
    assert summary["results"][-1]["score"] == pytest.approx(mean)
    assert f"{mean:.3f} [" in (run / "results.md").read_text()

    again = tmp_path / "again"
    assert main(["eval", *LETTERS_EVAL, *model[:-1], str(again)]) == 0
    assert rows_of(again, name="trajectories.jsonl") == episodes  # the same seed, the same episodes
    assert main(["eval", *LETTERS_EVAL, *model]) == 1
    assert f"Continue it with: agentgym eval --resume {run}" in capsys.readouterr().err


def test_the_oracle_and_chance_are_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    textcraft = ["eval", "--env.subsets", "Depth1", "--evaluate.tasks", "6", "--evaluate.horizon", "6"]
    results = {}
    for policy in ("oracle", "random"):
        run = tmp_path / policy
        assert main([*textcraft, "--policy", policy, "--run-dir", str(run)]) == 0
        (results[policy],) = json.loads((run / "summary.json").read_text())["results"]
    assert results["oracle"]["success"] == 1.0
    assert results["random"]["success"] < 0.5
    assert results["random"]["turns"] > results["oracle"]["turns"]
    capsys.readouterr()
    assert main(["eval", *LETTERS_EVAL, "--policy", "random", "--run-dir", str(tmp_path / "none")]) == 1
    assert f"policy='random': {LETTERS_ID} cannot list its actions" in capsys.readouterr().err


def test_a_runs_newest_checkpoint_is_evaluated_with_the_runs_settings(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, recipe = tmp_path / "run", tmp_path / "recipe.json"
    plain = settings(tiny_path, run, evaluate={"samples": 1, "at_start": False}, env={"subsets": ["Vowels"]})
    recipe.write_text(json.dumps({**plain, "evaluate": {**plain["evaluate"], "tasks": 1}, "data": {"tasks": 2}}))
    assert main(["eval", "--run", str(run)]) == 1
    assert f"there is no run in {run}" in capsys.readouterr().err
    assert main(["sft", "--recipe", str(recipe)]) == 0
    result = tmp_path / "result"
    assert main(["eval", "--run", str(run), "--evaluate.samples", "3", "--run-dir", str(result)]) == 0
    summary = json.loads((result / "summary.json").read_text())
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert summary["policy"] == str(checkpoint)
    assert [(row["subset"], row["episodes"], row["horizon"]) for row in summary["results"]] == [("Vowels", 3, 2)]


def test_several_scenarios_have_a_horizon_each(tiny_path: Path, tmp_path: Path) -> None:
    mix = [
        {"id": LETTERS, "name": "Vowels", "subsets": ["Vowels"]},
        {"id": LETTERS, "name": "Consonants", "subsets": ["Consonants"], "evaluate_horizon": 1},
    ]
    plain: dict[str, Any] = {"tasks": mix, "model": {"path": str(tiny_path)}, "run_dir": str(tmp_path / "run")}
    recipe = tmp_path / "mix.json"
    recipe.write_text(json.dumps({**plain, "command": "eval", "evaluate": {"horizon": 2}}))
    assert main(["eval", "--recipe", str(recipe), "--policy", "oracle"]) == 0
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]
    assert [(row["scenario"], row["horizon"], row["success"]) for row in rows] == [
        ("Vowels", 2, 1.0),
        ("Consonants", 1, 0.0),
    ]


def test_a_stopped_evaluation_plays_what_is_left(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Watched(RunFolder):
        def log_trajectories(self, rows: Iterable[dict[str, Any]]) -> None:
            super().log_trajectories(rows)
            signal.raise_signal(signal.SIGINT)

    start = ["eval", *LETTERS_EVAL, *EXACT, "--rollout.max-parallel", "1", "--model.path", str(tiny_path), "--run-dir"]
    run, straight = tmp_path / "run", tmp_path / "straight"
    assert main([*start, str(straight)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_train.run.RunFolder", Watched)
        assert main([*start, str(run)]) == 130
    assert f"stopped; continue with: agentgym eval --resume {run}" in capsys.readouterr().out
    (first,) = rows_of(run, name="trajectories.jsonl")
    failed = {**first, "task": "letters_7", "end": "error", "error": "the simulator is broken"}
    with (run / "trajectories.jsonl").open("a") as log:
        log.write(json.dumps(failed) + "\n" + '{"torn')  # an error, and what a crash leaves
    assert main(["eval", "--resume", str(run), "--seed", "3"]) == 1
    assert "--resume continues a run with its own configuration; --seed 3" in capsys.readouterr().err

    assert main(["eval", "--resume", str(run)]) == 0
    played = [row for row in rows_of(run, name="trajectories.jsonl") if row["end"] != "error"]
    assert played[0] == first
    assert sorted(row["task"] for row in played) == ["letters_11", "letters_3", "letters_7"]
    mine, theirs = (json.loads((path / "summary.json").read_text())["results"] for path in (run, straight))
    assert mine == theirs


def test_what_is_not_for_an_evaluation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert from_dict({}, EvalConfig).evaluate.tasks == 0
    assert main(["eval", "--recipe", "textcraft-scaling", "--run", "somewhere"]) == 1
    assert "--recipe and --run both say what to begin with" in capsys.readouterr().err
    assert main(["eval", *LETTERS_EVAL, "--evaluate.samples", "0"]) == 1
    assert "evaluate.samples=0 is not accepted; give at least 1" in capsys.readouterr().err
