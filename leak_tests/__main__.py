"""The command: soak one environment in one mode."""

from __future__ import annotations

import dataclasses
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import tyro
from rich.console import Console

from leak_tests.episodes import MODES, Mode
from leak_tests.registry import SUBJECTS
from leak_tests.report import slug, text, write_json
from leak_tests.runner import SubjectError, block_sizes, measure
from leak_tests.terminal import bar, try_plot
from leak_tests.verdict import judge, overall

_EXAMPLES = """
  python -m leak_tests --env AgentGym/TextCraft-v0                        one environment, 5,000 episodes
  python -m leak_tests --env AgentGym/TextCraft-v0 --mode vector          workers, some of which are killed
  python -m leak_tests --env my_package:My/Env-v0 --episodes 2000         any Gymnasium environment
  python -m leak_tests --env leak_tests.controls:Leak/File-v0 --episodes 200   what a leak looks like
"""


@dataclasses.dataclass
class Options:
    """Soak options."""

    env: str
    """Gymnasium id; module:id if it is registered by importing a module."""
    mode: Mode = "episodes"
    """How to play, see above."""
    episodes: int = 5_000
    """How many; in mode long, how many turns. Fewer make the interval wider."""
    seed: int = 0
    """Seed of the agent, which takes random valid actions."""
    block_seconds: float = 600.0
    """A block of episodes (a 40th of them) that takes longer is an error."""
    out: Path = Path("runs/leaks")
    """Folder for the JSON and the plot."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        Exit code: 0 pass, 1 anything else, 2 wrong usage, 130 stopped by Ctrl-C or SIGTERM.
    """
    options = tyro.cli(Options, prog="python -m leak_tests", description=_description(), args=argv)
    console = Console(highlight=False, markup=False, emoji=False)
    module, _, env_id = options.env.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(env_id)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        registered = ", ".join(subject.env for subject in SUBJECTS)
        return _usage(f"--env {options.env}: {error}. Soaked here: {registered}; any Gymnasium id is accepted.")
    try:
        with bar(console, f"{options.env} {options.mode}", len(block_sizes(options.episodes))) as advance:
            record = measure(options.env, options.mode, options.episodes, options.seed, options.block_seconds, advance)
    except ValueError as error:
        return _usage(str(error))
    except SubjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / slug(options.env, options.mode)
    write_json(record, path.with_suffix(".json"))
    console.print(text(record))
    console.print(f"json: {path.with_suffix('.json')}", soft_wrap=True)
    console.print(try_plot(record, path.with_suffix(".png")), soft_wrap=True)
    return 0 if overall(judge(record)) == "pass" else 1


def _description() -> str:
    modes = "\n".join(f"  {name:<9} {(player.__doc__ or '').splitlines()[0]}" for name, player in MODES.items())
    return (
        "Play thousands of episodes in a process of their own and decide whether anything grows: memory and Python "
        "heap (at most 200 KB per 1,000 episodes), threads, open files, sockets, child processes, temporary files "
        "(not at all).\n\n"
        "The growth is the Theil-Sen slope over blocks of episodes after a warm-up. It passes if its whole 95 % "
        "interval is within the limit; an interval wider than the limit is inconclusive, which counts as a failure.\n\n"
        f"Modes:\n{modes}\n\nExamples:{_EXAMPLES}"
    )


def _usage(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    sys.exit(main())
