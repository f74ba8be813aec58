"""`python -m leak_tests` and the soak as a user meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from leak_tests import SubjectError
from leak_tests.__main__ import main
from leak_tests.registry import Subject
from leak_tests.soak import main as soak_command
from leak_tests.soak import soak

ROOT = Path(__file__).resolve().parents[1]
CONTROL = "leak_tests.controls:Leak/List-v0"
NO_MATPLOTLIB = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from leak_tests.__main__ import main
sys.exit(main())
"""


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for taught in ("python -m leak_tests --env AgentGym/TextCraft-v0", "cycles", "vector", "long", "inconclusive"):
        assert taught in told


def test_a_leak_is_shown_with_its_line_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env", CONTROL, "--episodes", "100", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert re.search(r"KB  .*leak_tests/controls\.py:\d+", told)
    assert "verdict: fail" in told
    result = json.loads((tmp_path / "leak-tests-controls-Leak-List-v0-episodes.json").read_text())
    assert result["verdict"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--env", "AgentGym/TextCraft-v9"], "AgentGym/TextCraft-v0"),
        (["--env", "no_such_module:My/Env-v0"], "no_such_module"),
        (["--env", CONTROL, "--episodes", "5"], "at least 20"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_without_matplotlib_the_install_command_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_MATPLOTLIB, "--env", CONTROL, "--episodes", "40", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "pip install 'agentgym-suite[train]'" in done.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_it_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    hanging = "tests.leak_envs:Trouble/Hanging-v0"
    command = [sys.executable, "-m", "leak_tests", "--env", hanging, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        harness = psutil.Process(process.pid)
        deadline = time.monotonic() + 60
        while not (players := harness.children()) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2)  # until it hangs
        process.send_signal(how)
        _, told = process.communicate(timeout=60)
    assert len(players) == 1
    assert process.returncode == (-how if how == signal.SIGKILL else 130)
    assert "Traceback" not in told
    _, alive = psutil.wait_procs(players, timeout=20)
    assert all(player.status() == psutil.STATUS_ZOMBIE for player in alive)
    if how != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_the_soak_of_some_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "soak.md"
    folder = str(tmp_path / "runs")
    chosen = ["--env", "AgentGym/TextCraft-v0", "--episodes", "40", "--folder", folder, "--page", str(page)]
    soak_command(chosen)  # so few episodes may be inconclusive
    found = page.read_text(encoding="utf-8")
    assert found.count("| `AgentGym/TextCraft-v0` |") == 4
    other = "| `AgentGym/DeepSearch-v0` | `long` | found before |"
    page.write_text(found.replace("| `AgentGym/TextCraft-v0`", f"{other}\n| `AgentGym/TextCraft-v0`", 1))
    soak_command(chosen)  # what is finished is not played again
    again = page.read_text(encoding="utf-8")
    assert again.count("| `AgentGym/TextCraft-v0` |") == 4
    assert again.index("TextCraft-v0` | `long`") < again.index(other) < again.index("![")
    assert "![AgentGym/DeepSearch-v0, mode long](soak-AgentGym-DeepSearch-v0-long.png)" in again
    assert soak_command(["--env", "AgentGym/TextCroft-v0", "--folder", folder]) == 1
    assert "registered for the soak are AgentGym/TextCraft-v0, " in capsys.readouterr().err


def test_the_soak_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    folder, page = tmp_path / "runs", tmp_path / "docs" / "soak.md"
    finished = Subject(CONTROL, modes=("episodes", "cycles"))
    with pytest.raises(SubjectError):
        soak([finished, Subject("tests.leak_envs:Trouble/Dying-v0", modes=("episodes",))], 40, folder, page)
    assert not page.exists()
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(written) == 2

    other = Subject("leak_tests.controls:Leak/File-v0", modes=("episodes",))
    assert not soak([finished, other], 40, folder, page)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[1] for row in rows] == ["`episodes`", "`cycles`", "`episodes`"]
    assert "open files 1,000" in rows[2]
    assert len(list(page.parent.glob("soak-*.png"))) == 3

    first, second = written
    first.write_text(first.read_text().replace('"code": "', '"code": "other-'))
    assert not soak([finished], 40, folder, page)  # a run of other code is no run of this one
    assert '"code": "other-' not in first.read_text()
    assert second.stat().st_mtime_ns == written[second]
    assert not soak([finished], 60, folder, page)  # nor is a shorter one
    assert json.loads(second.read_text())["record"]["played"][-1] == 60
