"""Each way in which the main program or a worker of `SubprocVectorEnv` can end, in each state of the main program.

`python -m tests.kill_matrix` tries them all with real processes and writes the tables of
docs/vectorization.md; `python -m tests.kill_matrix STATE WAY` is one main program.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_wrappers import EnvResult, SubprocVectorEnv
from tests.rough_env import ONE_WAY_ID, ROUGH_ID

DOCS = Path(__file__).parents[1] / "docs" / "vectorization.md"
MARK = "AGENTGYM_KILL_MATRIX"  # an environment variable, by which what is left over is found
GONE_SECONDS = 30.0  # the longest wait; a closing that works takes about 6 s at most
AT_ONCE = 5

# What an environment of the main program is doing: the states that it reports before it ends.
STATES = ("making", "idle", "resetting", "stepping", "receiving")
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
# What it can also do by itself while an environment is idle or stepping (sent, not received), and its exit code.
OWN_WAYS = {"end without close": 0, "with block": 0, "exception": 1, "sys.exit(3)": 3, "os._exit(4)": 4}

# What ends a worker -> the action that does it, or a signal from outside.
WORKER_WAYS: dict[str, str | signal.Signals] = {
    "SIGKILL (out of memory)": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGSEGV (crash)": signal.SIGSEGV,
    "SIGSTOP (hang)": signal.SIGSTOP,
    "os._exit": "exit 3",
    "exception": "raise spam",
}
WORKER_STATES = ("idle", "resetting", "stepping", "receiving", "stepping, no replay")


class SlowStart:
    """A simulator that is just starting."""

    def __call__(self) -> Any:
        time.sleep(600)


def main_program(state: str, way: str) -> None:
    """Get into a state, say so, and end in a way, unless a signal does it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored

    def ready() -> None:
        print("ready", flush=True)

    if state == "making":
        ready()
        SubprocVectorEnv([SlowStart()] * 2, workers=2)
    vec = SubprocVectorEnv.make(ROUGH_ID, 4, workers=2, thread_per_env=True)
    vec.reset(seed=0, options={"task": "counter_4"})
    if state == "resetting":
        vec.set_attr("reset_seconds", 600)
        ready()
        vec.reset()
    if state == "stepping" and way in SIGNALS:
        ready()
        vec.step(["sleep 600", "add 1", "add 1", "add 1"])
    if state in ("stepping", "receiving"):
        vec.send([0, 1], ["sleep 600", "add 1"])
        vec.recv()
    ready()
    if state == "receiving":
        vec.recv()
    if way in SIGNALS:
        time.sleep(600)
    if way == "with block":
        with vec:
            return
    if way == "exception":
        raise LookupError("on purpose")
    if way == "sys.exit(3)":
        sys.exit(3)
    if way == "os._exit(4)":
        os._exit(4)


def survivors(mark: str) -> list[str]:
    """Command lines of the processes with a mark, whoever their parent is."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:  # a zombie has none
                    found.append(f"{folder.name}: {line}")
        except OSError:
            pass
    return found


def end_of_main(state: str, way: str) -> str:
    """What is left of a main program that ends so: `clean`, or what is wrong."""
    mark = uuid.uuid4().hex
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    folder = tempfile.mkdtemp(prefix="kill-matrix-")
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.kill_matrix", state, way],
        env={**os.environ, MARK: mark, "TMPDIR": folder},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with program:
            assert program.stdout is not None
            said = program.stdout.readline()
            if said != b"ready\n":
                return "not started"
            if way in SIGNALS:
                time.sleep(1.0 if state == "making" else 0.2)  # into the call after the message
                program.send_signal(SIGNALS[way])
            try:
                code = program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()
                return "still there after 60 s"
        expected = -SIGNALS[way] if way in SIGNALS else OWN_WAYS[way]
        if code != expected:
            return f"exit code {code}"
        deadline = time.monotonic() + GONE_SECONDS
        while (left := survivors(mark) + os.listdir(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if os.path.isdir("/dev/shm"):
            left += sorted(set(os.listdir("/dev/shm")) - shared)
        return f"left: {left}" if left else "clean"
    finally:
        for line in survivors(mark):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def end_of_worker(state: str, way: str) -> str:
    """What a main program sees when worker 0 of 2 ends so.

    Environments 0 and 1 are in worker 0, in threads, and 0 does what its worker's end takes; 2 is elsewhere.
    """
    deed = WORKER_WAYS[way]
    no_replay = state.endswith("no replay")
    if isinstance(deed, str) and state in ("idle", "resetting"):
        return "-"
    action = deed if isinstance(deed, str) else "sleep 600"
    vec = SubprocVectorEnv.make(
        ONE_WAY_ID if no_replay else ROUGH_ID,
        3,
        workers=2,
        thread_per_env=True,
        autoreset_mode="Disabled",
        call_seconds=600 if deed is not signal.SIGSTOP else 3,
    )
    with vec:
        vec.reset(seed=0, options={"task": "counter_4"})
        vec.send([0, 1, 2], ["add 1"] * 3)
        before = {result.env_index: result.observation for result in vec.recv(at_least=3)}
        hit: dict[int, str] = {}

        def strike() -> None:
            if isinstance(deed, signal.Signals):
                os.kill(vec.worker_pids[0], deed)

        if state == "resetting":
            vec.set_attr("reset_seconds", 1.0)
            vec.send_reset([0], options={"task": "counter_4"})
            time.sleep(0.3)
            strike()
            (begun,) = vec.recv()
            hit[0] = "started anew" if begun.env_index == 0 and "goal" in begun.info else "wrong"
        elif state == "idle":
            strike()
        else:
            vec.send([0], [action])
            early: list[EnvResult] = []
            if state == "receiving":
                early = vec.recv(timeout=0.3)
            else:
                time.sleep(0.3)
            strike()
            (result,) = early or vec.recv()
            hit[0] = f"fault: {result.info.get('fault_kind')}"
            if not result.truncated or result.observation != before[0]:
                hit[0] = f"wrong: {result}"
        others = [index for index in range(3) if index not in hit]
        vec.send(others, ["add 1"] * len(others))
        for result in vec.recv(at_least=len(others)):
            went_on = result.info["turn"] == 2 and not result.truncated
            hit[result.env_index] = "goes on" if went_on else f"fault: {result.info.get('fault_kind')}"
        if hit[2] != "goes on":
            return f"wrong: {hit}"
        ended = [index for index in hit if hit[index].startswith("fault")]
        if ended:
            vec.reset(seed=1, options={"reset_mask": np.isin(np.arange(3), ended)})
    return f"{hit[0]}; neighbour {hit[1]}"


def matrix(cell: Callable[[str, str], str], states: tuple[str, ...], ways: list[str]) -> dict[tuple[str, str], str]:
    """Try every cell, a few at a time."""
    pairs = [(way, state) for way in ways for state in states]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda pair: cell(pair[1], pair[0]), pairs)
        return dict(zip(pairs, results, strict=True))


def main_matrix() -> dict[tuple[str, str], str]:
    """All ends of a main program."""

    def cell(state: str, way: str) -> str:
        if way in OWN_WAYS and state not in ("idle", "stepping"):
            return "-"  # it cannot do that in the middle of a call
        return end_of_main(state, way)

    return matrix(cell, STATES, [*SIGNALS, *OWN_WAYS])


def worker_matrix() -> dict[tuple[str, str], str]:
    """All ends of a worker."""
    return matrix(end_of_worker, WORKER_STATES, list(WORKER_WAYS))


def table(cells: dict[tuple[str, str], str], corner: str) -> str:
    """A matrix in Markdown."""
    ways = dict.fromkeys(way for way, _ in cells)
    states = dict.fromkeys(state for _, state in cells)
    lines = [f"| {corner} | {' | '.join(states)} |", f"| --- |{' --- |' * len(states)}"]
    lines += [f"| {way} | {' | '.join(cells[way, state] for state in states)} |" for way in ways]
    return "\n".join(lines)


def written(text: str, tables: dict[str, str]) -> str:
    """A page with its tables put between their marks."""
    for name, lines in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        text = f"{before}{begin}{lines}\n{end}{after}"
    return text


def tables() -> dict[str, str]:
    """The tables of the page, as they come out now."""
    return {
        "main program": table(main_matrix(), "The main program ends by"),
        "worker": table(worker_matrix(), "A worker ends by"),
    }


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main_program(*sys.argv[1:])
    else:
        made = tables()
        print("\n\n".join(made.values()))
        DOCS.write_text(written(DOCS.read_text(encoding="utf-8"), made), encoding="utf-8")
