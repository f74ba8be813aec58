"""Make the run of docs/results/third-party-trl.md with TRL's trainers, and write the page.

python scripts/trl_results.py             # half an hour or more on a processor core
python scripts/trl_results.py --page      # only the page, from the log that is there
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results"
LOG = FOLDER / "third-party-trl.jsonl"
PAGE = FOLDER / "third-party-trl.md"
RUN = ROOT / "runs" / "trl"
SIZES = ("--demonstrations", "40", "--steps", "8")
RUN_SECONDS = 3 * 3600

Row = dict[str, Any]


def main() -> None:
    """Make the run, unless only the page is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="make no run")
    if not parser.parse_args().page:
        command = [sys.executable, str(ROOT / "examples" / "trl_grpo.py"), *SIZES, "--folder", str(RUN)]
        subprocess.run(command, check=True, timeout=RUN_SECONDS)
        shutil.copyfile(RUN / "log.jsonl", LOG)
    PAGE.write_text(page(log()), encoding="utf-8")


def log() -> list[Row]:
    """What the run has logged."""
    return [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]


def page(rows: list[Row]) -> str:
    """The page about a log."""
    held_out = {row["when"]: row for row in rows if "when" in row}
    warm = [row for row in rows if "mean_token_accuracy" in row]
    return TEXT.format(
        sizes=" ".join(SIZES),
        before=held_out["before"]["held_out_success"],
        after=held_out["after"]["held_out_success"],
        episodes=held_out["after"]["episodes"],
        warm=_table(warm, {"SFT step": "step", "Loss": "loss", "Token accuracy": "mean_token_accuracy"}),
        steps=_table(
            [row for row in rows if "reward" in row],
            {
                "GRPO step": "step",
                "Reward": "reward",
                "Success": "success",
                "Loss": "loss",
                "Gradient norm": "grad_norm",
                "Groups without difference": "frac_reward_zero_std",
            },
        ),
    )


def _table(rows: list[Row], columns: dict[str, str]) -> str:
    """A Markdown table with a row for each row, of the columns with these headings."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " ---: |" * len(columns)]
    for row in rows:
        cells = [str(row[key]) if key == "step" else f"{row[key]:.3f}" for key in columns.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


TEXT = """\
# TRL on TextCraft: a run's log

TRL's own `SFTTrainer` and `GRPOTrainer` with SmolLM2-135M-Instruct, as in
[`examples/trl_grpo.py`](../../examples/trl_grpo.py) with `{sizes}`: a warm start on an oracle
episode of each of 40 training goals of Depth1, then steps of 4 other training goals with 8 episodes each, of at most
4 turns.

On the 38 goals of the test split, {episodes} episodes with the same sampling seeds, success was **{before:.3f}** after
the warm start and **{after:.3f}** after GRPO. It is one run with one seed, which shows that the parts work together;
[textcraft-demo.md](textcraft-demo.md) has this suite's own trainer on the same task with three seeds.

## Warm start

{warm}

## GRPO

{steps}

`Reward` and `Success` are means over a step's 32 training episodes, on other goals at each step, so they vary with
the goals. TRL's `Loss` is near 0 while each batch is used once: what it moves is in its gradient. In a group without
difference all episodes had the same reward, so it has taught nothing.

## How to repeat

```bash
make demo-model
.venv/bin/python scripts/trl_results.py
```

It writes the log, [`third-party-trl.jsonl`](third-party-trl.jsonl), and this page.
"""


if __name__ == "__main__":
    main()
