"""The tables of SciWorld that `make verify` writes: they must be those of the current data and code."""

import csv
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from agentgym_envs.sciworld import packages, tasks
from agentgym_envs.sciworld.env import SciWorldEnv
from agentgym_envs.sciworld.jvm import Jvm, Settings
from agentgym_envs.sciworld.simulator import Simulator
from agentgym_envs.sciworld.verify import CODE_MB, HEAP_MB, chosen, kept_rows, sweep, verify

RESULTS = Path(__file__).parents[1] / "docs" / "results"
# Of different topics, one whose own path answers wrongly among them.
SAMPLE = (0, 1156, 2936, 4240, 4615)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    with (RESULTS / "sciworld-tasks.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_page_is_of_the_current_data() -> None:
    page = (RESULTS / "sciworld-tasks.md").read_text(encoding="utf-8")
    assert f"Data: `{SciWorldEnv.data_hash()}`" in page
    assert all(f"| {family.name} |" in page for family in tasks.FAMILIES)


def test_the_oracle_solves_exactly_what_seeds_may_choose_among_the_tasks_played(
    rows: dict[str, dict[str, str]],
) -> None:
    assert {f"sciworld_{index}" for index in chosen(20)} <= set(rows)
    table = tasks.task_table()
    assert {name for name, row in rows.items() if row["turns"] == "0"} == {
        task.id for task in table if not task.solvable
    }


def test_the_sweep_goes_on_from_the_table_and_from_what_it_kept(tmp_path: Path) -> None:
    for name in ("sciworld-tasks.md", "sciworld-tasks.csv"):
        shutil.copy(RESULTS / name, tmp_path)
    page, table = (
        (tmp_path / name).read_text(encoding="utf-8") for name in ("sciworld-tasks.md", "sciworld-tasks.csv")
    )
    header, first, *others = table.splitlines(keepends=True)
    console = Console(file=io.StringIO())
    assert verify(tmp_path, console, every=20, runs=tmp_path / "runs")  # nothing is left to be played
    assert (tmp_path / "sciworld-tasks.csv").read_text(encoding="utf-8") == table
    assert (tmp_path / "sciworld-tasks.md").read_text(encoding="utf-8") == page

    (tmp_path / "runs").mkdir()
    kept_rows(tmp_path / "runs").write_text(first + others[0][:10], encoding="utf-8")  # killed while it wrote
    (tmp_path / "sciworld-tasks.csv").write_text("".join([header, *others]), encoding="utf-8")
    assert verify(tmp_path, console, every=20, runs=tmp_path / "runs")
    assert (tmp_path / "sciworld-tasks.csv").read_text(encoding="utf-8") == table


def test_sample_of_rows_is_found_again(rows: dict[str, dict[str, str]]) -> None:
    jvm = Jvm(Settings(packages.find_java(), HEAP_MB, CODE_MB, start_seconds=120, call_seconds=200))
    try:
        simulator = Simulator(jvm)
        for index in SAMPLE:
            row = sweep(simulator, index)
            assert rows[row.id] == {key: str(value) for key, value in row._asdict().items()}
    finally:
        jvm.end()
