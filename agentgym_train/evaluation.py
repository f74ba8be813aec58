"""`agentgym eval`: any model on the held-out tasks of any scenarios, without training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agentgym_train.baselines import play
from agentgym_train.config_kinds import EvalConfig
from agentgym_train.metrics import evaluation_metrics, per_scenario
from agentgym_train.policy import Sampler
from agentgym_train.run import Run, check_errors, drive
from agentgym_train.statistics import bootstrap
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Trajectory


class Evaluation(Run):
    """An evaluation: each episode is written down when it is over, the results at the end."""

    config: EvalConfig

    def load(self) -> Sampler | None:
        """Load the model, if it is one that acts."""
        return super().load() if self.config.policy == "model" else None

    def run(self) -> dict[str, Any]:
        """Play all episodes; returns the summary."""
        config = self.config
        parts: dict[str, list[Trajectory]] = {}
        with self.timed("evaluate"):
            for scenario in self.scenarios:
                done = parts.setdefault(scenario.name, [])

                def finished(trajectory: Trajectory, done: list[Trajectory] = done) -> None:
                    done.append(trajectory)
                    self.folder.log_trajectories([trajectory.to_row(step=0, phase="eval", name="eval")])

                episodes = scenario.held_out(config.evaluate.samples, f"{config.seed}/evaluate/eval")
                if config.policy == "model":
                    self.roll_out(scenario, "evaluation", episodes, config.evaluate.temperature, finished)
                else:
                    play(scenario, episodes, config.policy, finished, self.stop.check)
                    check_errors(done, config.max_error_share)
        rows = [
            {"scenario": scenario.name, "env": scenario.spec.id, "source": scenario.source, **row}
            for scenario in self.scenarios
            for row in result_rows(parts[scenario.name])
        ]
        trajectories = [trajectory for part in parts.values() for trajectory in part]
        self.folder.log(
            {
                "step": 0,
                "phase": "eval",
                "name": "eval",
                "time": time.time(),
                "horizon": max(scenario.evaluate_horizon for scenario in self.scenarios),
                "temperature": config.evaluate.temperature,
                **evaluation_metrics(trajectories),
                **per_scenario(parts),
            }
        )
        summary = {
            "command": config.command,
            "status": "finished",
            "policy": config.model.path if config.policy == "model" else config.policy,
            "agent": config.agent.name,
            "seed": config.seed,
            "temperature": config.evaluate.temperature,
            "seconds": self.folder.progress.seconds,
            "results": rows,
        }
        self.folder.write_summary(summary)
        (self.folder.path / "results.md").write_text(results_page(summary), encoding="utf-8")
        self.terminal.say(results_table(rows))
        return summary

    def interrupted(self) -> str:
        """Tell where the finished episodes are."""
        return f"stopped; the episodes so far are in {self.folder.path / 'trajectories.jsonl'}"


def result_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The results of a scenario's episodes by subset, and of all together if there are several subsets.

    Success and score are means over tasks of the mean over a task's episodes, with the 95 % bootstrap interval over
    tasks. `any` is the share of tasks that at least one episode solved. Episodes that ended in an error are counted
    and take part in nothing else.
    """
    by_subset: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_subset[trajectory.subset].append(trajectory)
    rows = [_result(subset, part) for subset, part in sorted(by_subset.items()) if subset or len(by_subset) == 1]
    return rows if len(rows) == 1 else [*rows, _result("all", trajectories)]


def results_page(summary: dict[str, Any]) -> str:
    """The results as a page in Markdown."""
    lines = [
        f"# {summary['policy']}",
        "",
        f"Agent {summary['agent']}, temperature {summary['temperature']}, seed {summary['seed']}. Means over tasks "
        "with their 95 % bootstrap interval; `any`: tasks solved by at least one episode.",
        "",
        "| " + " | ".join(_HEADINGS) + " |",
        "| " + " | ".join("---" for _ in _HEADINGS) + " |",
        *("| " + " | ".join(_cells(row)) + " |" for row in summary["results"]),
    ]
    return "\n".join(lines) + "\n"


def results_table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as lines of text."""
    cells = [list(_HEADINGS), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def evaluate(config: EvalConfig, terminal: Terminal | None = None) -> dict[str, Any]:
    """Evaluate (see `run.drive`)."""
    return drive(Evaluation, config, resume=False, terminal=terminal)


_HEADINGS = ("scenario", "subset", "data", "horizon", "tasks", "episodes", "success", "any", "score", "turns", "errors")


def _cells(row: dict[str, Any]) -> list[str]:
    success, score = (
        f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]" for name in ("success", "score")
    )
    counts = [str(row[name]) for name in ("scenario", "subset", "source", "horizon", "tasks", "episodes")]
    return [*counts, success, f"{row['any']:.3f}", score, f"{row['turns']:.1f}", str(row["errors"])]


def _result(subset: str, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    sound = [trajectory for trajectory in trajectories if trajectory.end != "error"]
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in sound:
        by_task[trajectory.episode.task].append(trajectory)
    row: dict[str, Any] = {
        "subset": subset,
        "horizon": trajectories[0].episode.horizon,
        "tasks": len(by_task),
        "episodes": len(trajectories),
        "errors": len(trajectories) - len(sound),
        "any": _mean([any(one.success for one in own) for own in by_task.values()]),
        "turns": _mean([sum(turn.acted for turn in one.turns) for one in sound]),
    }
    for name in ("success", "score"):
        means = {task: _mean([float(getattr(one, name)) for one in own]) for task, own in by_task.items()}
        row[name], row[f"{name}_low"], row[f"{name}_high"] = bootstrap(means) if means else (0.0, 0.0, 0.0)
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
