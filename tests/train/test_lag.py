"""Groups that may be finished late: nothing is lost, nothing is waited for, and nothing is later than allowed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from agentgym_train.cli import main
from agentgym_train.config import ConfigError, from_dict
from agentgym_train.groups import GroupsUnderWay
from agentgym_train.loop import train
from agentgym_train.trajectory import Episode, Trajectory
from tests.train.letters_env import SLOW_ID
from tests.train.test_runs import rows_of, settings, start

LATE: dict[str, Any] = {
    "steps": 6,
    "horizon": 2,
    "checkpoint_every": 1,
    "env": {"id": f"tests.train.letters_env:{SLOW_ID}"},
    "rollout": {"deterministic": False, "max_lag": 2, "late_share": 0.5, "env_workers": 12},
    "evaluate": {"every": 4, "at_start": False, "samples": 1},
    "warm_start": {"kind": "none"},
}


def groups(max_lag: int, late_share: float = 0.5) -> GroupsUnderWay:
    return GroupsUnderWay(lambda episodes: [Trajectory(episode) for episode in episodes], max_lag, late_share)


def episodes(*tasks: str) -> list[Episode]:
    return [Episode(task, 7, sample, 3, "test") for task in tasks for sample in range(2)]


def finish(under_way: GroupsUnderWay, *tasks: str) -> None:
    for trajectory in under_way.under_way:
        if trajectory.episode.task in tasks:
            trajectory.end = "success"


def test_a_step_waits_for_its_share_and_for_what_is_as_late_as_it_may_be() -> None:
    under_way = groups(max_lag=1)
    under_way.begin(0, episodes("a", "b", "c", "d"))
    finish(under_way, "a")
    assert not under_way.enough(0, 4)
    finish(under_way, "b")
    assert under_way.enough(0, 4)
    assert [[one.episode.task for one in group.trajectories] for group in under_way.take()] == [["a"] * 2, ["b"] * 2]

    under_way.begin(1, episodes("e", "f"))
    finish(under_way, "e", "f", "c")
    assert not under_way.enough(1, 2)  # "d" was begun a step ago
    under_way.under_way[0].end = "success"
    assert not under_way.enough(1, 2)  # one of its two is not finished
    finish(under_way, "d")
    assert under_way.enough(1, 2)
    assert [group.step for group in under_way.take()] == [0, 0, 1, 1]


def test_without_a_lag_a_step_waits_for_all_of_its_groups() -> None:
    under_way = groups(max_lag=0)
    under_way.begin(3, episodes("a", "b"))
    finish(under_way, "a")
    assert not under_way.enough(3, 2)
    finish(under_way, "b")
    assert under_way.enough(3, 2)


def test_groups_that_were_left_are_begun_again() -> None:
    first, second = groups(1), groups(1)
    first.begin(0, episodes("a", "b"))
    finish(first, "a")
    first.take()
    second.restore(json.loads(json.dumps(first.state())))
    assert [one.episode for one in second.under_way] == episodes("b")
    assert second.state() == first.state()


def test_a_slow_task_is_trained_on_later_and_loses_nothing(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(from_dict(settings(tiny_path, run, **LATE)))
    rows = [row for row in rows_of(run) if row["phase"] == "train"]
    assert max(row["lag/max"] for row in rows) in (1, 2)
    assert sum(row["lag/episodes_left"] > 0 for row in rows) > 0
    played = [e for e in rows_of(run, "trajectories.jsonl") if e["phase"] == "train"]
    late = [e for e in played if e["task"] == "letters_0"]
    assert late
    assert {e["end"] for e in played} <= {"horizon", "success"}
    by_group: dict[tuple[str, int], set[int]] = {}
    for episode in played:
        by_group.setdefault((episode["task"], episode["seed"]), set()).add(episode["step"])
    assert all(len(steps) == 1 for steps in by_group.values())  # a group is trained on whole
    assert sum(row["groups/total"] for row in rows) == len(by_group)
    assert all(row["groups/total"] >= 2 for row in rows)


def test_a_run_that_is_killed_begins_its_late_groups_again(tiny_path: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = start(tiny_path, run, **LATE)
    killed.stop(2, signal.SIGKILL)
    assert main(["train", "--resume", str(run)]) == 0
    rows = [row for row in rows_of(run) if row["phase"] == "train"]
    assert [row["step"] for row in rows] == list(range(6))
    played = [e for e in rows_of(run, "trajectories.jsonl") if e["phase"] == "train"]
    (progress,) = run.glob("checkpoints/*/progress.json")
    (left,) = (len(groups) for groups in json.loads(progress.read_text())["late"].values())
    assert len({(e["task"], e["seed"]) for e in played}) == len(played) // 4 == 6 * 3 - left


def test_a_lag_and_determinism_exclude_each_other(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_lag=1 is not accepted with rollout\.deterministic=true"):
        train(from_dict(settings(tiny_path, tmp_path / "run", rollout={"max_lag": 1})))
