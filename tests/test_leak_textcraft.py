"""TextCraft for thousands of episodes in every mode, through the command and without it."""

import json
from pathlib import Path

import pytest

from leak_tests import judge, measure, overall
from leak_tests.__main__ import main
from leak_tests.episodes import Mode

TEXTCRAFT = "AgentGym/TextCraft-v0"


def test_5000_episodes_of_one_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env", TEXTCRAFT, "--episodes", "5000", "--out", str(tmp_path)]) == 0
    assert "verdict: pass" in capsys.readouterr().out
    result = json.loads((tmp_path / "AgentGym-TextCraft-v0-episodes.json").read_text())
    assert result["verdict"] == "pass"
    assert result["record"]["played"][-1] == 5_000
    found = {finding["quantity"]: finding for finding in result["findings"]}
    assert found["memory"]["interval"][1] < 50
    assert found["memory"]["smallest_visible"] < 50
    for name in ("threads", "open files", "sockets", "child processes", "temporary files"):
        assert found[name]["interval"] == [0, 0]
    assert (tmp_path / "AgentGym-TextCraft-v0-episodes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("mode", "number"), [("cycles", 1_500), ("vector", 3_000), ("long", 5_000)])
def test_other_modes(mode: Mode, number: int) -> None:
    record = measure(TEXTCRAFT, mode, number)
    found = judge(record)
    assert overall(found) == "pass", found
    processes = set(record.samples["child processes"])
    assert processes == ({2} if mode == "vector" else {0})
