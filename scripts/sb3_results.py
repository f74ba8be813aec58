"""Make the runs of docs/results/third-party-sb3.md, those that are not there yet, and write the page and its figure.

python scripts/sb3_results.py             # 24 runs, of which each takes less than a minute of processor time
python scripts/sb3_results.py --page      # only the page and the figure, from the runs that are there
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results"
RUNS = FOLDER / "third-party-sb3.jsonl"
PAGE = FOLDER / "third-party-sb3.md"
FIGURE = FOLDER / "third-party-sb3.png"
STEPS = {"TextCraft": 12_000, "GoToRedBallGrey": 12_000, "GoToObj": 12_000, "GoToLocal": 25_000}
SEEDS = (0, 1, 2)
ORDERS = (0, 1)
RUN_SECONDS = 3600

Run = dict[str, Any]


def main() -> None:
    """Make what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="make no run")
    if not parser.parse_args().page:
        made = {(run["task"], run["order"], run["seed"]) for run in runs()}
        wanted = [(task, order, seed) for order in ORDERS for seed in SEEDS for task in STEPS]
        for task, order, seed in wanted:
            if (task, order, seed) not in made:
                make(task, order, seed)
    write_page(runs())


def runs() -> list[Run]:
    """The runs that are there."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.is_file() else []


def make(task: str, order: int, seed: int) -> None:
    """Make a run, which adds itself to the file."""
    command = [sys.executable, str(ROOT / "examples" / "sb3_ppo.py"), "--task", task, "--steps", str(STEPS[task])]
    command += ["--order", str(order), "--seed", str(seed), "--out", str(RUNS)]
    subprocess.run(command, check=True, timeout=RUN_SECONDS)


def table(all_runs: list[Run]) -> str:
    """A row for each task and order: success, a number a seed."""
    lines = [
        "| Task | Order | Seeds | Random | Trained | Steps | Processor time of a run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in STEPS:
        for order in ORDERS:
            same = sorted(
                (run for run in all_runs if (run["task"], run["order"]) == (task, order)), key=lambda run: run["seed"]
            )
            if same:
                seeds = ", ".join(str(run["seed"]) for run in same)
                trained = ", ".join(f"{run['trained']:.3f}" for run in same)
                seconds = max(run["seconds"] for run in same)
                lines.append(
                    f"| {task} | {order} | {seeds} | {mean(run['random'] for run in same):.2f} | {trained} | "
                    f"{same[0]['steps']:,} | up to {seconds:.0f} s |"
                )
    return "\n".join(lines)


def write_page(all_runs: list[Run]) -> None:
    """Write the page and draw the figure."""
    PAGE.write_text(TEXT.format(table=table(all_runs)), encoding="utf-8")
    draw(all_runs)


def draw(all_runs: list[Run]) -> None:
    """Training success by environment step: a panel a task, a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(STEPS), figsize=(13, 3.2), sharey=True)
    for panel, task in zip(panels, STEPS, strict=True):
        same = [run for run in all_runs if run["task"] == task]
        for run in same:
            steps, success = zip(*run["curve"], strict=True)
            colour = ("tab:blue", "tab:orange")[run["order"]]
            panel.plot(steps, success, color=colour, alpha=0.7, linewidth=1.2)
        if same:
            panel.axhline(mean(run["random"] for run in same), color="grey", linestyle=":", label="random")
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("environment steps")
        panel.set_ylim(0, 1.02)
        panel.locator_params(axis="x", nbins=4)
    for order, colour in enumerate(("tab:blue", "tab:orange")):
        panels[0].plot([], [], color=colour, label=f"order {order}")
    panels[0].set_ylabel("success of training episodes")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)
    pyplot.close(figure)


TEXT = """\
# Stable-Baselines3 on BabyAI and TextCraft: results

MaskablePPO of sb3-contrib with its MLP policy, as in [`examples/sb3_ppo.py`](../../examples/sb3_ppo.py), on one
processor thread. An episode is a success if the environment says so (`info["success"]`).

{table}

`Random` chooses among the possible actions (mean over the seeds); `Trained` samples from the policy; a number a
seed. `Order` is another numbering of the actions (`DiscreteActions(order=...)`), to see whether what is learned
hangs on it.

![Success of training episodes by step](third-party-sb3.png)

## What was measured

- **BabyAI** (GoToRedBallGrey, GoToObj, GoToLocal): all actions that the environment lists, so also the planned
  ones, such as `go to red ball 1`, which walk by themselves. What is to be learned is which of the things in sight
  the mission means, and to look around while it is not in sight. Six turns an episode: the environment's own
  planner needs at most six. Trained on levels with seeds from 1,000 up, evaluated on seeds 0 to 199. Small rooms
  have few layouts, so some of the levels with other seeds are the same.
- **TextCraft**: the first 16 goals of Depth1, five turns an episode, evaluated on the same goals with prompts
  (recipes beside those needed, their order) of other seeds.
- The observation is which groups of up to four words occur in the text and in the goal, hashed into 2,304 zeros and
  ones. The policy remembers nothing from one turn to the next.
- Turns are cut this short because random play is good otherwise: with minigrid's own limit of 64 steps, random
  planned actions succeed in more than nine of ten episodes.

## How to repeat

```bash
.venv/bin/python scripts/sb3_results.py
```

It makes the runs that [`third-party-sb3.jsonl`](third-party-sb3.jsonl) does not have, and writes this page.
"""


if __name__ == "__main__":
    main()
