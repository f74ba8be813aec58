"""A run that is killed five times, beside one that is left alone: are they the same to the last digit?

`python -m benchmarks.killed_run` trains the compact model twice with the same settings. One of the processes gets
SIGKILL at five random times, and is resumed by `agentgym train --resume` each time. Then rows of metrics, episodes
and weights are compared, and docs/results/killed-run.md is written, with a plot.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from safetensors.torch import load_file

from agentgym_train.compact import compact_path
from benchmarks.algorithms import MODEL

KILLS = 5
SECONDS_TO_LIVE = (15.0, 45.0)  # of a process that will be killed
MOST_SECONDS = 3600.0  # of one that will not
_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs" / "results" / "killed-run.md"


def recipe(run: Path, steps: int, model: Path) -> Path:
    """Write the settings of a run whose horizon grows in stages, and return their file."""
    settings = {
        "run_dir": str(run),
        "steps": steps,
        "horizon": {"kind": "staged", "stages": [[0, 3], [1 / 3, 5], [2 / 3, 6]]},
        "checkpoint_every": 2,
        "env": {"id": "AgentGym/TextCraft-v0", "subsets": ["Depth1"]},
        "model": {"path": str(model)},
        "warm_start": {"kind": "none"},
        "rollout": {"tasks_per_step": 8, "samples_per_task": 8, "max_reply_tokens": 24, "deterministic": True},
        "agent": {"constrained": True},
        "optimiser": {"lr": 1e-3, "precision": "float32", "token_budget": 4096},
        "evaluate": {"tasks": 16, "samples": 4, "horizon": 6},
    }
    file = run.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return file


def train(arguments: Sequence[str], output: Path, seconds: float) -> int | None:
    """Run `agentgym train` and kill it after some time; returns its exit code, None if it was killed."""
    command = [sys.executable, "-m", "agentgym_train.cli", "train", *arguments]
    with output.open("a", encoding="utf-8") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.send_signal(signal.SIGKILL)


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run; a line that a kill has cut off is left out."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows


def killed_run(run: Path, file: Path, rng: random.Random) -> list[int]:
    """Train with interruptions; returns how many steps had been logged at each of them."""
    logged: list[int] = []
    output = run.with_suffix(".txt")
    arguments = ["--recipe", str(file)]
    while len(logged) < KILLS:
        if train(arguments, output, rng.uniform(*SECONDS_TO_LIVE)) is not None:
            raise SystemExit(f"the run ended before it had been killed {KILLS} times: see {output}; more --steps.")
        logged.append(sum(row["phase"] == "train" for row in rows_of(run)))
        print(f"killed after {logged[-1]} steps", flush=True)
        arguments = ["--resume", str(run)] if (run / "config.yaml").is_file() else arguments
    if train(arguments, output, MOST_SECONDS) != 0:
        raise SystemExit(f"the run failed: see {output}.")
    return logged


def timeless(run: Path) -> Iterator[str]:
    """Each row of metrics without the times, as a line."""
    for row in rows_of(run):
        yield json.dumps({key: value for key, value in row.items() if key != "time" and not key.startswith("seconds")})


def comparison(one: Path, other: Path) -> list[tuple[str, int, int]]:
    """What was compared: its name, how many there are, and how many differ."""
    metrics = [list(timeless(run)) for run in (one, other)]
    episodes = [(run / "trajectories.jsonl").read_text(encoding="utf-8").split("\n")[:-1] for run in (one, other)]
    weights = [load_file(next((run / "checkpoints").glob("*/model.safetensors"))) for run in (one, other)]
    names = set(weights[0]) | set(weights[1])
    unequal = [name for name in names if not all(name in own for own in weights)]
    unequal += [name for name in names - set(unequal) if not weights[0][name].equal(weights[1][name])]
    return [
        ("rows of metrics, times left out", len(metrics[0]), _different(*metrics)),
        ("episodes, with their tokens' text, rewards and ends", len(episodes[0]), _different(*episodes)),
        ("weights", len(names), len(unequal)),
    ]


def _different(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(line.startswith(("+ ", "- ")) for line in difflib.ndiff(one, other)) if one != other else 0


def draw(straight: Path, killed: Path, logged: Sequence[int], picture: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4))
    for run, label, width, alpha in ((straight, "left alone", 5.0, 0.35), (killed, "killed", 1.5, 1.0)):
        rows = [row for row in rows_of(run) if row["phase"] == "train"]
        steps, success = [row["step"] + 1 for row in rows], [row["success/mean"] for row in rows]
        axes.plot(steps, success, label=label, linewidth=width, alpha=alpha)
    for number, done in enumerate(logged):
        axes.axvline(done, color="0.6", linewidth=1, linestyle=":", label="SIGKILL" if number == 0 else None)
    axes.set(xlabel="step", ylabel="success in training", ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(picture, dpi=120, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    parser.add_argument("--folder", type=Path, default=_ROOT / "runs" / "killed", help="must not exist")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    model = compact_path(MODEL, print)
    straight, killed = options.folder / "straight", options.folder / "killed"
    logged = killed_run(killed, recipe(killed, options.steps, model), random.Random(options.seed))
    if train(["--recipe", str(recipe(straight, options.steps, model))], straight.with_suffix(".txt"), MOST_SECONDS):
        raise SystemExit(f"the run failed: see {straight.with_suffix('.txt')}.")
    found = comparison(straight, killed)
    draw(straight, killed, logged, _PAGE.with_suffix(".png"))
    _PAGE.write_text(page(options.steps, logged, found), encoding="utf-8")
    print(*found, f"results: {_PAGE}", sep="\n")
    raise SystemExit(any(differ for _, _, differ in found))


def page(steps: int, logged: Sequence[int], found: Sequence[tuple[str, int, int]]) -> str:
    return "\n".join(
        [
            "# A run that was killed five times",
            "",
            f"Written by `python -m benchmarks.killed_run`: GRPO on TextCraft with the compact model, {steps} steps, a "
            "horizon of 3, 5 and 6 turns, `rollout.deterministic`, a checkpoint every two steps. One process was left "
            "alone. The other got SIGKILL at random times, whatever it was doing, after "
            f"{', '.join(map(str, logged[:-1]))} and {logged[-1]} logged steps, and `agentgym train --resume` went on "
            "each time.",
            "",
            "| Compared | How many | Different |",
            "| --- | ---: | ---: |",
            *(f"| {name} | {count} | {differ} |" for name, count, differ in found),
            "",
            "![Success in training of both runs, with the kills](killed-run.png)",
            "",
        ]
    )


if __name__ == "__main__":
    main()
