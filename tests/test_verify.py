"""The tables that `make verify` writes: they must be those of the current data and code."""

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from agentgym_envs import verify

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SAMPLE = range(7, 544, 27)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with (RESULTS / "textcraft-tasks.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_summary_is_of_the_current_data() -> None:
    env, _ = verify.make("TextCraft")
    assert f"Data hash: `{env.data_hash()}`" in (RESULTS / "textcraft-tasks.md").read_text(encoding="utf-8")


def test_every_task_has_a_row_and_is_solved(rows: list[dict[str, str]]) -> None:
    assert [row["id"] for row in rows] == [f"textcraft_{index}" for index in range(544)]
    assert {row["solved"] for row in rows} == {"True"}


def test_sample_of_rows_is_found_again(rows: list[dict[str, str]]) -> None:
    env, max_turns = verify.make("TextCraft")
    assert len(SAMPLE) == 20
    for index in SAMPLE:
        row = verify.sweep_task(env, env.task_table().find(index), max_turns)
        assert rows[index] == {key: str(value) for key, value in row._asdict().items()}


def test_sweep_reports_an_unsolved_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few turns for the long plans the sweep must say so, and still write its files."""
    make = verify.make
    monkeypatch.setattr(verify, "make", lambda scenario: (make(scenario)[0], 10))
    monkeypatch.setattr(verify, "RANDOM_EPISODES", 2)
    said = io.StringIO()
    assert not verify.verify("TextCraft", tmp_path, Console(file=said))
    assert "not solved:" in said.getvalue()
    assert ",False" in (tmp_path / "textcraft-tasks.csv").read_text(encoding="utf-8")
