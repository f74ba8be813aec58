"""Run third-party packages on the environments, each in a virtual environment of its own, and write the matrix.

python scripts/compat.py [NAME ...]      # `make compat`: all of them

Writes docs/compatibility.md, of which rows that were not asked for are kept. A package that cannot be installed, or
that fails, has a row that says so. The environments are kept in .compat/; delete a folder there to try a package's
newest version.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOMES = ROOT / ".compat"
PAGE = ROOT / "docs" / "compatibility.md"
INSTALL_SECONDS = 1800
ROW = re.compile(r"\| `(?P<name>[^`]+)` \|")

CHECK_ENV = """
import gymnasium, agentgym_envs
from gymnasium.utils.env_checker import check_env
for id in ("AgentGym/TextCraft-v0", "AgentGym/BabyAI-v0"):
    check_env(gymnasium.make(id).unwrapped)
    vec = gymnasium.make_vec(id, num_envs=2, vectorization_mode="sync")
    vec.reset(seed=0)
    vec.step(["inventory"] * 2)
    vec.close()
"""
SB3_CHECK = """
import gymnasium, agentgym_envs
from agentgym_wrappers.numeric import DiscreteActions, EncodeObservation
from stable_baselines3.common.env_checker import check_env
for id in ("AgentGym/TextCraft-v0", "AgentGym/BabyAI-v0"):
    check_env(DiscreteActions(EncodeObservation(gymnasium.make(id))))
"""


@dataclass(frozen=True)
class Package:
    """What is installed and run for one row.

    Attributes:
        name: Name of the row.
        install: Requirements, as pip takes them.
        shown: Package whose version the row gives.
        what: What is run, for people.
        commands: Arguments for the environment's Python, one after the other.
        extras: Extras of this project.
        torch: Whether torch is needed; the version of constraints/cpu.txt is installed first.
        seconds: What all commands together may take.
        beside: Row whose virtual environment is used, since it needs the same packages.
    """

    name: str
    install: tuple[str, ...]
    shown: str
    what: str
    commands: tuple[tuple[str, ...], ...]
    extras: str = "babyai"
    torch: bool = True
    seconds: int = 900
    beside: str = ""


def _example(name: str, *arguments: str) -> tuple[str, ...]:
    return (f"examples/{name}.py", *arguments)


SMALL_SB3 = ("--steps", "256", "--envs", "2", "--episodes", "4")
PACKAGES = (
    Package(
        "gymnasium (newest)",
        ("gymnasium",),
        "gymnasium",
        "`check_env` and `make_vec` on TextCraft and BabyAI",
        (("-c", CHECK_ENV),),
        torch=False,
    ),
    Package(
        "gymnasium (oldest)",
        ("gymnasium==1.1.0",),
        "gymnasium",
        "`check_env` and `make_vec` on TextCraft and BabyAI",
        (("-c", CHECK_ENV),),
        torch=False,
    ),
    Package(
        "stable-baselines3",
        ("stable-baselines3", "sb3-contrib"),
        "stable_baselines3",
        "its `check_env`; PPO in `examples/sb3_ppo.py`, in `SubprocVecEnv`",
        (("-c", SB3_CHECK), _example("sb3_ppo", "--task", "GoToObj", "--primitive", "--processes", *SMALL_SB3)),
    ),
    Package(
        "sb3-contrib",
        ("stable-baselines3", "sb3-contrib"),
        "sb3_contrib",
        "MaskablePPO in `examples/sb3_ppo.py`",
        (_example("sb3_ppo", "--task", "TextCraft", *SMALL_SB3),),
        beside="stable-baselines3",
    ),
    Package(
        "CleanRL style",
        (),
        "torch",
        "`examples/cleanrl_ppo.py` (PyTorch alone: the `cleanrl` package pins Gymnasium 0.29)",
        (_example("cleanrl_ppo", "--total-timesteps", "256", "--num-envs", "4"),),
    ),
    Package(
        "tianshou",
        ("tianshou",),
        "tianshou",
        "PPO in `examples/tianshou_ppo.py`",
        (_example("tianshou_ppo", "--steps", "256", "--envs", "2", "--episodes", "4"),),
        extras="babyai,tianshou",
    ),
    Package(
        "trl",
        ("trl",),
        "trl",
        "SFTTrainer and GRPOTrainer: `rollout_func` in `examples/trl_grpo.py`, `environment_factory` in "
        "`examples/trl_tools.py`, on SmolLM2-135M",
        (
            _example(
                *("trl_grpo", "--demonstrations", "2", "--steps", "1", "--groups", "1", "--generations", "2"),
                *("--turns", "1", "--evaluate", "0", "--folder", ".compat/trl-run"),
            ),
            _example("trl_tools", "--generations", "2", "--tokens", "48", "--folder", ".compat/trl-tools-run"),
        ),
        extras="train",
        seconds=1800,
    ),
)


class Failure(Exception):
    """Why a row has failed, on one line."""


def main() -> int:
    """Run the packages that were named, or all, and write the page."""
    names = [package.name for package in PACKAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args().names or names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown {', '.join(map(repr, unknown))}; accepted are {', '.join(map(repr, names))}.")
    failed = 0
    for package in PACKAGES:
        if package.name in chosen:
            print(f"== {package.name}", flush=True)
            version, result = row(package)
            print(f"   {version}: {result}", flush=True)
            failed += not result.startswith("works")
            write_page(package, version, result)
    return 1 if failed else 0


def row(package: Package) -> tuple[str, str]:
    """Install and run a package; returns the version that was tried and the result."""
    home = HOMES / re.sub(r"\W+", "-", package.beside or package.name).strip("-")
    python = home / "bin" / "python"
    version = "not installed"
    try:
        if not (home / "complete").is_file():
            install(package, home, python)
            (home / "complete").touch()
        version = run([str(python), "-c", _VERSION.format(package.shown)], INSTALL_SECONDS).strip()
        begun = time.monotonic()
        for command in package.commands:
            run([str(python), *command], package.seconds - (time.monotonic() - begun))
        return version, f"works ({time.monotonic() - begun:.0f} s)"
    except Failure as failure:
        return version, f"**fails**: {failure}"


_VERSION = "from importlib.metadata import version; print(version({!r}))"


def install(package: Package, home: Path, python: Path) -> None:
    """Make the virtual environment of a package."""
    run([sys.executable, "-m", "venv", "--clear", str(home)], INSTALL_SECONDS)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = home / "torch.txt"
    constraints = (ROOT / "constraints" / "cpu.txt").read_text(encoding="utf-8")
    pins = [line for line in constraints.splitlines() if line.startswith("torch==")]
    pinned.write_text("\n".join(pins) + "\n", encoding="utf-8")
    if package.torch:  # before the others, which would bring a build for GPUs
        run([*pip, "--no-deps", "--constraint", str(pinned), "torch"], INSTALL_SECONDS)
    # Again with torch, for what it needs itself.
    more = ["--constraint", str(pinned), "torch"] if package.torch else []
    run([*pip, *more, "-e", f"{ROOT}[{package.extras}]", *package.install], INSTALL_SECONDS)


def run(command: list[str], seconds: float) -> str:
    """Return what a command prints; raise Failure with its last line where it fails or takes too long."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what it started can be ended with it
    )
    try:
        printed, _ = process.communicate(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        raise Failure(f"`{_short(command)}` took more than its time limit") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        print(printed, flush=True)
        lines = [line for line in printed.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"\s*(\w*\.)*\w*(Error|Exception|ERROR)\b", line)]
        last = (errors or lines or [f"exit status {process.returncode}"])[-1].strip()
        raise Failure(f"`{_short(command)}`: {last[:200].replace('|', '/')}")
    return printed


def _short(command: list[str]) -> str:
    """A command without its folder, and without code."""
    words = command[: command.index("-c") + 1] if "-c" in command else command[:4]
    return " ".join([Path(words[0]).name, *words[1:]])


def write_page(package: Package, version: str, result: str) -> None:
    """Write a row into the page, whose other rows stay as they are."""
    rows: dict[str, str] = {}
    if PAGE.is_file():
        for line in PAGE.read_text(encoding="utf-8").splitlines():
            if found := ROW.match(line):
                rows[found["name"]] = line
    day = datetime.date.today().isoformat()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    rows[package.name] = f"| `{package.name}` | {version} | {package.what} | {result} | {day}, Python {python} |"
    order = [rows[each.name] for each in PACKAGES if each.name in rows]
    text = "\n".join([HEAD, *order, ""])
    PAGE.write_text(text, encoding="utf-8")


HEAD = """\
# Compatibility

What has been run on the environments, each package in a virtual environment of its own. `make compat` writes this page.
A row that fails stays, with the error.

| Package | Version | What was run | Result | When |
| --- | --- | --- | --- | --- |"""


if __name__ == "__main__":
    sys.exit(main())
