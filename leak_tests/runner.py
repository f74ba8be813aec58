"""Plays episodes in a process of their own and takes a sample of everything after each block of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from leak_tests.episodes import Mode
from leak_tests.probes import OUTSIDE, read_tree
from leak_tests.process_tree import marked

BLOCKS = 40
WARM_UP_SHARE = 0.25
FEWEST_EPISODES = 20
_LOG_LINES = 15
_CLOSE_SECONDS = 30.0


class SubjectError(RuntimeError):
    """The process that plays died or did not answer in time."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured.

    Attributes:
        env: Gymnasium id.
        mode: How it was played.
        seed: Of the agent.
        unit: What `played` counts, "episodes" or "turns".
        warm_up: Number of leading samples that no verdict uses.
        played: How many had been played at each sample, shape [n].
        samples: A quantity's values, each of shape [n], by its name.
        growers: Lines of code whose objects took more memory at the end than after the warm-up, with the KB.
        seconds: How long it took.
    """

    env: str
    mode: Mode
    seed: int
    unit: str
    warm_up: int
    played: list[int]
    samples: dict[str, list[float]]
    growers: list[tuple[str, float]]
    seconds: float

    @property
    def span(self) -> int:
        """How many were played between the first and the last sample that count."""
        return self.played[-1] - self.played[self.warm_up]


def measure(
    env: str,
    mode: Mode = "episodes",
    episodes: int = 5_000,
    seed: int = 0,
    answer_seconds: float = 600.0,
    on_block: Callable[[], None] = lambda: None,
) -> Record:
    """Play episodes in a new process and measure it after each block of them.

    Args:
        env: Gymnasium id, `module:id` if another module registers it.
        mode: How to play, see `leak_tests/episodes.py`.
        episodes: How many episodes (turns in mode "long"), at least 20.
        seed: Of the agent.
        answer_seconds: How long a block may take.
        on_block: Called after each block.

    Raises:
        ValueError: If there are too few episodes.
        SubjectError: If the process died or a block took too long.
    """
    if episodes < FEWEST_EPISODES:
        raise ValueError(f"episodes is {episodes}; a trend needs at least {FEWEST_EPISODES}, better 1,000 and more.")
    blocks = block_sizes(episodes)
    warm_up = round(WARM_UP_SHARE * len(blocks))
    played: list[int] = []
    samples: dict[str, list[float]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="leak-tests-", ignore_cleanup_errors=True) as folder:
        with _subject(Path(folder), answer_seconds) as subject:
            unit = subject.ask({"env": env, "mode": mode, "seed": seed})["unit"]
            for number, size in enumerate(blocks):
                # Once at the start, too, so that the memory that marking takes is there from the first sample on.
                if number in (0, warm_up):
                    subject.ask(["mark", 0])
                answer = subject.ask(["play", size])
                tree = read_tree(subject.pid, subject.marker, subject.temp_folder)
                played.append(answer["played"])
                outside = {quantity.name: float(value(tree)) for quantity, value in OUTSIDE.items()}
                for name, value in {**outside, **answer["samples"]}.items():
                    samples.setdefault(name, []).append(value)
                on_block()
            growers = [(line, kb) for line, kb in subject.ask(["growers", 0])["growers"]]
    return Record(env, mode, seed, unit, warm_up, played, samples, growers, time.monotonic() - began)


def block_sizes(episodes: int) -> list[int]:
    """Split episodes into `BLOCKS` blocks (fewer if there are fewer episodes), as equal as can be."""
    number = min(BLOCKS, episodes)
    return [episodes * (i + 1) // number - episodes * i // number for i in range(number)]


class _Subject:
    """The harness's end of the process that plays."""

    def __init__(self, process: subprocess.Popen[bytes], marker: str, folder: Path, answer_seconds: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.marker = marker
        self.temp_folder = folder / "tmp"
        self._folder = folder
        self._process = process
        self._requests: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout
        self._answer_seconds = answer_seconds

    def ask(self, request: Any) -> dict[str, Any]:
        """Send a line and wait for the answer.

        Raises:
            SubjectError: If there is none.
        """
        with contextlib.suppress(BrokenPipeError):  # the answer's absence tells
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        deadline = time.monotonic() + self._answer_seconds
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise SubjectError(f"the process that plays gave no answer in {self._answer_seconds:g} s.{self._log()}")
            more = os.read(self._answers.fileno(), 1 << 16)
            if not more:
                code = self._process.wait(10)
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise SubjectError(f"the process that plays {how}.{self._log()}")
            line += more
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the environment close and the process end.

        Raises:
            SubjectError: If closing raised or took too long.
        """
        self._requests.close()
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            raise SubjectError(f"closing the environment took more than {_CLOSE_SECONDS:g} s.{self._log()}") from None
        if code:
            raise SubjectError(f"closing the environment failed.{self._log()}")

    def hang_up(self) -> None:
        """Close the pipes."""
        self._requests.close()
        self._answers.close()

    def _log(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([" Its last lines:", *lines]) if lines else ""


@contextlib.contextmanager
def _subject(folder: Path, answer_seconds: float) -> Iterator[_Subject]:
    """Start the process that plays; end it and all that it started."""
    (folder / "tmp").mkdir()
    name, value = "LEAK_TESTS_RUN", uuid.uuid4().hex
    environment = {
        **os.environ,
        name: value,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "leak_tests.subject"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is the harness's business
        )
    marker = f"{name}={value}"
    subject = _Subject(process, marker, folder, answer_seconds)
    try:
        yield subject
        subject.close()
    finally:
        for process_id in marked(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        process.wait()
        subject.hang_up()
