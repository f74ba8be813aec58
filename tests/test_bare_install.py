"""What an install without the trainer's packages can do, in an interpreter that cannot import them."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An import hook stands in for packages that are not there.
BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "yaml", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, timeout=120)


def test_environments_and_wrappers_work() -> None:
    done = run(
        "import gymnasium, agentgym_envs, agentgym_wrappers as w\n"
        "env = w.HorizonCurriculum(w.ActionParser(gymnasium.make('AgentGym/TextCraft-v0')), 3)\n"
        "env.reset(seed=0)\n"
        "print(env.step('Action: inventory')[0])\n"
    )
    assert done.stdout.startswith("Inventory:"), done.stderr


@pytest.mark.parametrize("command", ["train", "demo", "report"])
def test_commands_name_the_install_command(command: str) -> None:
    done = run(f"from agentgym_train.cli import main\nsys.exit(main([{command!r}, 'runs/none']))\n")
    assert done.returncode == 1
    assert "pip install 'agentgym-suite[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_nothing() -> None:
    done = run("from agentgym_train.cli import main\nsys.exit(main(['--help']))\n")
    assert done.returncode == 0
    assert "agentgym COMMAND" in done.stdout
