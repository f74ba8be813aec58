"""What the documentation shows works: every Python block by itself, recipes, and the table of replies."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from agentgym_envs import RefusedAction
from agentgym_wrappers import parse_reply

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))\n")  # the first line of a block that is a file
REPLY_ROW = re.compile(r"\| (?P<ticks>`+) ?(?P<reply>.*?) ?(?P=ticks) \| (?P<refused>refused: )?`(?P<answer>.*)` \|")


class Block(NamedTuple):
    """A fenced block: its page, the line it begins in, its language and content."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file_name(self) -> str:
        name = FILE_NAME.match(self.text)
        return name[1] if name else ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(page, text.count("\n", 0, one.start()) + 1, one[1], one[2]) for one in FENCED.finditer(text)]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def run(block: Block, folder: Path, *arguments: str) -> None:
    """Runs Python in a folder that holds the files which the block's page shows, and nothing else."""
    for other in blocks(block.page):
        if other.file_name:
            (folder / other.file_name).write_text(other.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_a_python_block_runs_by_itself(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.text, encoding="utf-8")
    run(block, tmp_path, str(script))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.file_name.endswith(".yaml")], ids=str)
def test_a_recipe_is_accepted_and_finds_its_tasks(block: Block, tmp_path: Path) -> None:
    code = (
        "from agentgym_train.checks import check_config\n"
        "from agentgym_train.config import load_recipe\n"
        "from agentgym_train.task_pools import task_pools\n"
        f"config = load_recipe({block.file_name!r})\n"
        "check_config(config)\n"
        "task_pools(config)\n"
    )
    run(block, tmp_path, "-c", code)


def reply_rows() -> list[str]:
    page = (ROOT / "docs" / "wrappers.md").read_text(encoding="utf-8")
    rows = page.partition("| Reply | Action |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    assert rows, "docs/wrappers.md has no table of replies any more"
    return rows


@pytest.mark.parametrize("line", reply_rows())
def test_a_reply_is_understood_as_the_table_says(line: str) -> None:
    row = REPLY_ROW.fullmatch(line)
    assert row is not None, "the row is not in the table's form"
    found = parse_reply(row["reply"].replace(r"\n", "\n"))
    assert isinstance(found, RefusedAction) == bool(row["refused"])
    told = found.reason.partition(" Write exactly")[0] if isinstance(found, RefusedAction) else found
    assert told == row["answer"]
