"""The doctor's report, from the real command on this machine and on crippled ones."""

import os
import subprocess
import sys
from pathlib import Path

import numpy

RUN_DOCTOR = "import sys; from agentgym_train.doctor import run_doctor; sys.exit(run_doctor())"


def doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN_DOCTOR],
        env=os.environ | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def row(report: str, name: str) -> str:
    """The table row that has a cell with exactly this text."""
    (found,) = (line for line in report.splitlines() if name in [cell.strip() for cell in line.split("│")])
    return found


def test_a_complete_installation_gets_a_clean_bill() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert numpy.__version__ in row(done.stdout, "numpy")
    for name in ("AgentGym/TextCraft-v0", "hf", "demo model"):
        assert "yes" in row(done.stdout, name)
    assert "AgentGym/TextCraft-Depth1-v0" not in done.stdout


def test_a_broken_torch_costs_the_engine_only(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: cannot open')")
    done = doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "yes" in row(done.stdout, "AgentGym/TextCraft-v0")
    assert "libcudart.so: cannot open" in row(done.stdout, "hf")
    assert "  hf: make install\n" in done.stdout


def test_a_scenario_that_cannot_run_fails_the_check(tmp_path: Path) -> None:
    for package in ("textcraft", "torch"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('broken')")
    done = doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ImportError" in row(done.stdout, "AgentGym/TextCraft-v0")
    assert "  AgentGym/TextCraft-v0: make install\n" in done.stdout


def test_a_missing_demo_model_is_named_with_its_command(tmp_path: Path) -> None:
    done = doctor(AGENTGYM_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no" in row(done.stdout, "demo model")
    assert "  demo model: make demo-model\n" in done.stdout
