"""The process that plays: `python -m leak_tests.subject`, told what to do by the harness over its pipes.

It is a fresh process, so that what the harness itself holds (samples, plots, pytest) is not measured. It
answers one JSON line to each that it reads; the harness measures it while it waits for the next.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import tracemalloc
from collections.abc import Callable
from typing import Any

_GROWERS = 10
_PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None)


def main() -> None:
    """Obey until the harness closes its end."""
    # The harness may be killed without a chance to end this process.
    _C.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # What environments print goes to the log; what they start must not read the harness's lines.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    tracemalloc.start()
    # Only now, so that everything an environment's modules keep is traced.
    from leak_tests.episodes import MODES
    from leak_tests.probes import INSIDE
    from leak_tests.registry import find

    job = json.loads(requests.readline())
    player = MODES[job["mode"]](find(job["env"]), job["seed"])
    before: dict[str, int] = {}

    def play(count: int) -> dict[str, Any]:
        player.play(count)
        player.settle()
        _settle()
        values = {quantity.name: measure(player.open_env) for quantity, measure in INSIDE.items()}
        return {"played": player.played, "samples": {name: v for name, v in values.items() if v is not None}}

    def mark(_: int) -> dict[str, Any]:
        before.clear()
        before.update(_lines())
        return {}

    def growers(_: int) -> dict[str, Any]:
        grown = {line: size - before.get(line, 0) for line, size in _lines().items()}
        most = sorted(grown, key=lambda line: -grown[line])[:_GROWERS]
        return {"growers": [[line, grown[line] / 1024] for line in most if grown[line] > 0]}

    commands: dict[str, Callable[[int], dict[str, Any]]] = {"play": play, "mark": mark, "growers": growers}
    try:
        print(json.dumps({"unit": player.unit}), file=answers, flush=True)
        for line in requests:
            name, count = json.loads(line)
            print(json.dumps(commands[name](count)), file=answers, flush=True)
    finally:
        if player.open_env is not None:
            player.open_env.close()


def _settle() -> None:
    """Drop what is only waiting to be dropped: unreachable objects, and memory that the allocator keeps."""
    gc.collect()
    if hasattr(_C, "malloc_trim"):  # glibc
        _C.malloc_trim(0)


def _lines() -> dict[str, int]:
    """Bytes that live objects take, by the line that made them."""
    gc.collect()
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    ours = (__file__, tracemalloc.__file__)
    return {str(line.traceback): line.size for line in statistics if line.traceback[0].filename not in ours}


if __name__ == "__main__":
    main()
