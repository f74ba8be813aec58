"""AgentEvol: rounds of exploring and learning, that learn, stop in either and go on exactly."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_train.cli import main
from agentgym_train.config import ConfigError, from_dict
from agentgym_train.config_kinds import EvolConfig
from agentgym_train.evol import Evol, Kept
from agentgym_train.models import load_model
from agentgym_train.run import drive
from agentgym_train.trajectory import Episode, Trajectory
from tests.train.small_runs import assert_same_run, curve_of, press_ctrl_c, rows_of, settings, weights_of


def evol_settings(tiny_path: Path, run: Path, **changes: Any) -> dict[str, Any]:
    plain = settings(
        tiny_path,
        run,
        rounds=2,
        horizon=2,
        env={"subsets": ["Vowels"]},
        warm_start={"kind": "none"},
        rollout={"tasks_per_step": 3, "samples_per_task": 8, "steps_per_round": 2, "min_score": 0.3},
        learn={"epochs": 6, "batch_size": 8},
        evaluate={"tasks": 1, "samples": 1},
    )
    for name, value in changes.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) and name != "horizon" else value
    return plain


def run_evol(plain: dict[str, Any], resume: bool = False) -> dict[str, Any]:
    return drive(Evol, from_dict(plain, EvolConfig), resume, None)


def test_rounds_raise_the_score_of_exploration(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes: dict[str, Any] = {"rollout": {"samples_per_task": 16, "min_score": 0.1}, "learn": {"epochs": 10}}
    summary = run_evol(evol_settings(tiny_path, run, checkpoint_every=0, **changes))
    rows = rows_of(run, "explore")
    assert [(row["round"], row["step"]) for row in rows] == [(1, 0), (1, 1), (2, 2), (2, 3)]
    scores = [row["score/mean"] for row in rows]
    assert sum(scores[2:]) > 1.5 * sum(scores[:2])  # with three seeds it was 2.2 to 3.3 times
    assert summary["rounds"] == 2
    assert summary["kept"] == sum(row["kept"] for row in rows)
    episodes = rows_of(run, "explore", "trajectories.jsonl")
    assert sum(episode["score"] >= 0.1 for episode in episodes) == summary["kept"]
    assert {episode["task"] for episode in episodes} <= {"letters_0", "letters_1", "letters_2"}  # not the held-out one
    assert [row["step"] for row in rows_of(run, "eval")] == [0, 4]  # counted by steps of exploring
    learned = [row["round"] for row in rows_of(run, "learn")]
    assert 0 < learned.count(1) < learned.count(2)  # each round learns from all before it
    assert [row["step"] for row in rows_of(run, "learn")] == list(range(len(learned)))


def test_the_horizon_grows_from_round_to_round(tiny_path: Path, tmp_path: Path) -> None:
    horizon = {"kind": "linear", "start": 1, "increment": 1, "every": 1, "cap": 2}
    changes: dict[str, Any] = {"learn": {"epochs": 1}, "rollout": {"samples_per_task": 2, "steps_per_round": 1}}
    run_evol(evol_settings(tiny_path, tmp_path / "run", horizon=horizon, evaluate={"at_start": False}, **changes))
    assert [row["horizon"] for row in rows_of(tmp_path / "run", "explore")] == [1, 2]
    episodes = rows_of(tmp_path / "run", "explore", "trajectories.jsonl")
    assert {(e["horizon"], len(e["turns"])) for e in episodes} == {(1, 1), (2, 2)}


@pytest.mark.parametrize("after", [1, 3])  # while it explores, while it learns
def test_a_run_that_is_stopped_in_a_round_goes_on_exactly(
    after: int, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"learn": {"epochs": 1, "batch_size": 4}, "warm_start": {"kind": "oracle", "tasks": 1}}
    changes["rollout"] = {"tasks_per_step": 2, "samples_per_task": 4, "min_score": 0.0}
    run_evol(evol_settings(tiny_path, tmp_path / "straight", **changes))
    run, recipe = tmp_path / "run", tmp_path / "recipe.json"
    recipe.write_text(json.dumps(evol_settings(tiny_path, run, **changes)))
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, after)
        assert main(["evol", "--recipe", str(recipe)]) == 130
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name.endswith("explore" if after == 1 else "learn")
    assert main(["evol", "--resume", str(run)]) == 0
    assert_same_run(run, tmp_path / "straight")
    steps, losses = zip(*curve_of(run, "learn/loss"), strict=True)
    assert list(steps) == [row["step"] for row in rows_of(run, "learn")]
    assert list(losses) == pytest.approx([row["loss"] for row in rows_of(run, "learn")])
    assert [step for step, _ in curve_of(run, "explore/score/mean")] == [0, 1, 2, 3]


def test_a_finished_run_goes_on_to_more_rounds(tiny_path: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"learn": {"epochs": 1}, "rollout": {"samples_per_task": 2, "steps_per_round": 1}}
    plain = evol_settings(tiny_path, tmp_path / "run", rounds=1, evaluate={"at_start": False}, **changes)
    run_evol(plain)
    assert main(["evol", "--resume", plain["run_dir"], "--rounds", "2"]) == 0
    assert [row["round"] for row in rows_of(tmp_path / "run", "explore")] == [1, 2]


def test_when_nothing_is_kept_the_run_says_so_and_the_model_stays(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"rollout": {"samples_per_task": 1, "steps_per_round": 1, "min_score": 1.0}}
    run_evol(evol_settings(tiny_path, tmp_path / "run", rounds=1, horizon=1, **changes))
    assert "round 1: no episode scored rollout.min_score=1, nothing is learned" in capsys.readouterr().out
    untrained = load_model(str(tiny_path)).state_dict()
    assert all(torch.equal(value, untrained[name]) for name, value in weights_of(tmp_path / "run").items())
    played = rows_of(tmp_path / "run", "eval", "trajectories.jsonl")
    before, after = ([row["turns"] for row in played if row["name"] == name] for name in ("before", "after"))
    assert before == after  # the same draws: a policy that is the same does not seem to gain or lose


def test_what_is_kept_survives_a_checkpoint(tmp_path: Path) -> None:
    kept, again = Kept(), Kept()
    trajectory = Trajectory(Episode("t", 1, 2, 3, "s"), score=0.5, prompt_length=1)
    trajectory.append_given([5])
    trajectory.append_sampled([6, 7], [-0.5, -1.0], [(6, 8), ()])
    kept.trajectories = [trajectory]
    torch.save(kept.state_dict(), tmp_path / "kept.pt")
    again.load_state_dict(torch.load(tmp_path / "kept.pt", weights_only=True))
    assert again.trajectories == [trajectory]


def test_a_round_that_cannot_be_filled_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 training tasks .*fewer than rollout\.tasks_per_step=9"):
        run_evol(evol_settings(tiny_path, tmp_path / "run", rollout={"tasks_per_step": 9}))
    with pytest.raises(ConfigError, match="rounds=0 is not accepted; give at least 1"):
        run_evol(evol_settings(tiny_path, tmp_path / "run", rounds=0))
