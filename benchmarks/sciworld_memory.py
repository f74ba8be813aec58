"""Memory of SciWorld and of the stock package over many short episodes, as a table and a plot.

`python -m benchmarks.sciworld_memory` writes `docs/results/sciworld-memory.csv` and `.png`. Both play the first
actions of the same gold paths, each in one environment of a process of its own. With stock steps it takes an hour.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

from benchmarks.sciworld_play import gold_paths

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PATHS = 60
STEPS = 5

Line = list[tuple[int, float]]


def memory(kind: str, episodes: int, paths: str) -> Line:
    """Episodes played and PSS in MB of Python and Java together, every ten episodes."""
    command = [sys.executable, "-m", "benchmarks.sciworld_play", kind, "1", "1", str(episodes), "0"]
    done = subprocess.run(command, cwd=ROOT, input=paths, capture_output=True, text=True, check=True, timeout=20_000)
    return cast(Line, json.loads(done.stdout.splitlines()[-1])["memory"])


def plot(lines: dict[str, Line], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = {"ours": "AgentGym/SciWorld-v0", "stock": "package scienceworld"}
    for kind, line in lines.items():
        axes.plot(*zip(*line, strict=True), label=labels[kind])
        axes.annotate(f"{line[-1][1]:.0f} MB", line[-1], xytext=(4, 4), textcoords="offset points", ha="right")
    axes.set(xlabel=f"episodes of {STEPS} steps", ylabel="PSS of Python and Java, MB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sciworld_memory", description=__doc__)
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    paths = json.dumps([(name, variation, path[:STEPS]) for name, variation, path in gold_paths(PATHS)])
    lines = {kind: memory(kind, options.episodes, paths) for kind in ("ours", "stock")}
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "sciworld-memory.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["episodes", *lines])
        writer.writerows(
            (ours[0], *(f"{line[1]:.1f}" for line in (ours, stock)))
            for ours, stock in zip(*lines.values(), strict=True)
        )
    plot(lines, options.out / "sciworld-memory.png")


if __name__ == "__main__":
    main()
