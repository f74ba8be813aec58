"""The tables of BabyAI that `make verify` writes: they must be those of the current data and code."""

import csv
from pathlib import Path

import pytest

from agentgym_envs.babyai import levels
from agentgym_envs.babyai.env import BabyAIEnv
from agentgym_envs.babyai.verify import SEEDS, sweep_task

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SAMPLE = range(3, SEEDS * 40, 133)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with (RESULTS / "babyai-tasks.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_page_is_of_the_current_data() -> None:
    page = (RESULTS / "babyai-levels.md").read_text(encoding="utf-8")
    assert f"Data: `{BabyAIEnv.data_hash()}`" in page
    assert all(f"| {level} |" in page for level in levels.NAMES)


def test_every_task_has_a_row_and_is_solved_if_seeds_may_choose_it(rows: list[dict[str, str]]) -> None:
    assert [row["id"] for row in rows] == [f"babyai_{index}" for index in range(SEEDS * 40)]
    assert {row["solved"] for row in rows if row["solvable"] == "True"} == {"True"}


def test_what_the_oracle_promises(rows: list[dict[str, str]]) -> None:
    solvable = [row for row in rows if row["solvable"] == "True"]
    assert sum(row["planned"] == "True" for row in solvable) >= 0.9 * len(solvable)
    ratios = sorted(int(row["turns"]) / int(row["bot_steps"]) for row in solvable if row["bot_steps"] != "0")
    assert ratios[len(ratios) // 2] <= 0.5


def test_sample_of_rows_is_found_again(rows: list[dict[str, str]]) -> None:
    env = BabyAIEnv(split="all")
    for index in SAMPLE:
        row, _ = sweep_task(env, index, max_turns=100)
        assert rows[index] == {key: str(value) for key, value in row._asdict().items()}
