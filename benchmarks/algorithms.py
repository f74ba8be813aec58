"""Learning curves of every online algorithm on one setting: TextCraft, the compact model, equal budgets.

`python -m benchmarks.algorithms` trains each algorithm with each seed (runs/algorithms/, about three minutes each on
an idle core; interrupted, the same command goes on) and writes docs/results/algorithms.md with a plot.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from agentgym_train.compact import CompactConfig, compact_path
from agentgym_train.config import AlgorithmConfig, Config, from_dict
from agentgym_train.curves import format_seconds, plot_seeds
from agentgym_train.loop import train
from agentgym_train.report import Run, format_percent, format_points, read_run
from agentgym_train.statistics import paired_bootstrap

NAMES: tuple[str, ...] = get_args(get_type_hints(AlgorithmConfig)["name"])
LEARNING_RATE = 1e-3
# It has learnt to repeat what it has read, and next to nothing of the task: after more it is too sure to explore.
MODEL = CompactConfig(episodes=4)
_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs" / "results" / "algorithms.md"


def setting(name: str, seed: int, steps: int, model: Path, folder: Path) -> Config:
    """The configuration of one run; only algorithm and seed differ."""
    return from_dict(
        {
            "run_dir": str(folder / f"{name.replace('+', 'p')}-{seed}"),
            "seed": seed,
            "steps": steps,
            "horizon": 6,
            "checkpoint_every": 5,
            "env": {"id": "AgentGym/TextCraft-v0", "subsets": ["Depth1"]},
            "model": {"path": str(model)},
            "warm_start": {"kind": "none"},  # the compact model has had its own
            "rollout": {"tasks_per_step": 16, "samples_per_task": 8, "max_reply_tokens": 24},
            "agent": {"constrained": True},
            "algorithm": {"name": name, "critic_lr": 1e-3},
            "optimiser": {"lr": LEARNING_RATE, "precision": "float32", "token_budget": 4096},
            "evaluate": {"tasks": 32, "samples": 8, "horizon": 6},
        }
    )


def page(runs: dict[str, list[Run]], steps: int) -> str:
    """The page: what was run, and a row for each algorithm."""
    lines = [
        "# The online algorithms on one setting",
        "",
        "Written by `python -m benchmarks.algorithms`: TextCraft's goals of depth 1, the compact model before it has "
        f"been taught the task (it can repeat words of its context), {steps} steps of 16 tasks x 8 samples within 6 "
        f"turns, choosing among the listed actions, learning rate {LEARNING_RATE:g}; the same 32 held-out tasks x 8 "
        "samples before and after. The setting was found by trying GRPO with seed 0, and nothing was tuned for the "
        "others: the figures say that each learns, not which one is best. Times are of a machine that had other work.",
        "",
        "| Algorithm | Seeds | Before | After | Gain (points) | 95 % interval | Time a run |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, own in runs.items():
        before, after = (_by_task(own, when) for when in ("before", "after"))
        gain, low, high = paired_bootstrap(before, after)
        cells = (
            name,
            len(own),
            format_percent(statistics.fmean(run.summary["before"] for run in own)),
            ", ".join(format_percent(run.summary["after"]) for run in own),
            format_points(gain),
            f"{format_points(low)} to {format_points(high)}",
            format_seconds(statistics.fmean(sum(run.summary["seconds"].values()) for run in own)),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "Intervals are paired bootstraps over tasks, of each task's mean over the seeds. The curves are the means over "
        "the seeds.",
        "",
        "![Success in training by step, a line an algorithm](algorithms.png)",
    ]
    return "\n".join(lines) + "\n"


def mean_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Success by step, averaged over the seeds."""
    return [
        {"step": rows[0]["step"], "success/mean": statistics.fmean(row["success/mean"] for row in rows)}
        for rows in zip(*(run.train for run in runs), strict=True)
    ]


def _by_task(runs: Sequence[Run], name: str) -> dict[str, float]:
    rows = [row for run in runs if (row := run.evaluation(name)) is not None]
    tasks = set.intersection(*(set(row["success/by_task"]) for row in rows))
    return {task: statistics.fmean(row["success/by_task"][task] for row in rows) for task in sorted(tasks)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are not finished, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of another model than the compact one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=_ROOT / "runs" / "algorithms")
    parser.add_argument("--page", type=Path, default=_PAGE)
    options = parser.parse_args(arguments)
    model = options.model or compact_path(MODEL, print)
    runs: dict[str, list[Run]] = {name: [] for name in NAMES}
    for seed in range(options.seeds):  # a seed of each first, so that an interrupted study compares equals
        for name in NAMES:
            config = setting(name, seed, options.steps, model, options.folder)
            folder = Path(config.run_dir)
            begun = (folder / "config.yaml").is_file()
            if not begun or read_run(folder).summary.get("status") != "finished":
                train(config, resume=begun)
            runs[name].append(read_run(folder))
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(runs, options.steps), encoding="utf-8")
    figure = plot_seeds(
        {name: mean_rows(own) for name, own in runs.items()}, "TextCraft, compact model: success in training"
    )
    figure.savefig(options.page.with_suffix(".png"), dpi=150, metadata={"Software": None})
    print(f"results: {options.page}")


if __name__ == "__main__":
    main()
