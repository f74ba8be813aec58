"""Schedules as a table and a plot; an adaptive one on curves of the kinds that runs produce."""

import json
from pathlib import Path

import pytest

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.cli import main
from agentgym_train.plan_horizon import CURVES, fixed_table, made_up_signals, replay, stages
from agentgym_wrappers import FixedHorizon, LinearHorizon

ADAPTIVE = "{kind: adaptive, start: 10, increment: 10, cap: 30, window: 20}"
PNG = b"\x89PNG"


def test_the_stages_of_a_schedule() -> None:
    linear = LinearHorizon(start=2, increment=2, every=150, cap=20)
    assert stages(linear, 400) == [(0, 149, 2), (150, 299, 4), (300, 399, 6)]
    assert stages(FixedHorizon(7), 3) == [(0, 2, 7)]
    assert [line.split() for line in fixed_table({"": linear}, 200).splitlines()[1:]] == [
        ["0-149", "2"],
        ["150-199", "4"],
    ]


def test_any_schedule_is_plotted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    staged = "{kind: staged, stages: [[0, 4], [0.5, 8]]}"
    assert main(["plan-horizon", "--horizon", staged, "--steps", "10"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[1:3]] == [["0-4", "4"], ["5-9", "8"]]
    assert Path("horizon.png").read_bytes().startswith(PNG)
    assert main(["plan-horizon", "--recipe", "textcraft-scaling", "--out", ""]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["10", "20", "30"]


def test_an_adaptive_horizon_is_shown_recorded_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-horizon", "--horizon", ADAPTIVE, "--out", str(tmp_path / "a.png")]) == 0
    lines = {kind: line for line in capsys.readouterr().out.splitlines() for kind in CURVES if line.startswith(kind)}
    assert lines.keys() == CURVES.keys()
    assert lines["collapse"].split()[1:3] == ["10", "-"]
    assert "collapse: success fell from" in lines["collapse"]
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_it_raises_on_the_plateaus_only() -> None:
    rule = AdaptiveHorizon(start=10, increment=10, cap=30, window=20)
    raised = {kind: replay(rule, made_up_signals(kind, 60)).told.count("raised") for kind in CURVES}
    assert raised == {"rising": 0, "plateau": 2, "rising, then settled": 2, "collapse": 0, "noise": 0}
    result = replay(rule, made_up_signals("plateau", 60))
    first = result.told.index("raised")
    assert result.turns[: first + 1] == [10] * (first + 1)
    assert result.turns[first + 1] == 20
    assert rule.turns == 10  # the rule itself has seen nothing


def test_the_steps_of_a_run_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"phase": "train", "success/mean": 0.5, "entropy": 1.0, "tokens/reply_mean": 9.0, "valid_action_share": 0.9}
    rows = [{**row, "step": step} for step in range(30)]
    for idle in rows[:24:2]:  # steps without an update count too
        del idle["entropy"]
    command = ["plan-horizon", "--horizon", ADAPTIVE, "--out", "", "--run", str(tmp_path)]
    assert main(command) == 1
    assert "metrics.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"phase": "eval"}) + "\n")
    assert main(command) == 1
    assert "there is no step of `agentgym train`" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["20", "19", "-"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --horizon or --recipe (one of: "),
        (["--horizon", "4", "--recipe", "textcraft-scaling"], "give --horizon or --recipe"),
        (["--horizon", "0"], "horizon=0: "),
        (["--horizon", "4", "--steps", "-1"], "--steps -1 is not accepted"),
        (["--horizon", "{kind: linaer}"], "kind 'linaer' is unknown"),
        (["--recipe", "nothing"], "is neither a recipe of the package"),
        (["--horizon", "4", "--out", "/nowhere/at/all.png"], "/nowhere/at/all.png"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-horizon", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
