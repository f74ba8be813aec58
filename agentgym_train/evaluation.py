"""`agentgym eval`: any model on the held-out tasks of any scenarios, without training."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agentgym_train.baselines import play
from agentgym_train.config_kinds import EvalConfig
from agentgym_train.policy import Sampler
from agentgym_train.run import Run, check_errors, drive
from agentgym_train.scenario import Scenario
from agentgym_train.statistics import bootstrap
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory, Turn


class Evaluation(Run):
    """An evaluation: each episode is written down when it is over, the results at the end."""

    config: EvalConfig

    def load(self) -> Sampler | None:
        """Load the model, if it is one that acts."""
        return super().load() if self.config.policy == "model" else None

    def run(self) -> dict[str, Any]:
        """Play the episodes that are left; returns the summary."""
        config = self.config
        with self.timed("evaluate"):
            parts = {scenario.name: self._play(scenario) for scenario in self.scenarios}
        rows = [
            {"scenario": scenario.name, "env": scenario.spec.id, "source": scenario.source, **row}
            for scenario in self.scenarios
            for row in result_rows(parts[scenario.name])
        ]
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
        self.folder.write_text("results.md", results_page(summary))
        self.terminal.say(results_table(rows))
        return summary

    def interrupted(self) -> str:
        """Tell how to go on: the finished episodes are in the folder."""
        return f"stopped; continue with: agentgym {self.config.command} --resume {self.config.run_dir}"

    def _play(self, scenario: Scenario) -> list[Trajectory]:
        """Play those of a scenario's episodes that the folder does not hold; returns all, in their order."""
        config = self.config
        done = self._played(scenario)

        def finished(trajectory: Trajectory) -> None:
            done[trajectory.episode] = trajectory
            row = trajectory.to_row(step=0, phase="eval", name=scenario.name, source=scenario.source)
            self.folder.log_trajectories([row])

        episodes = scenario.held_out(config.evaluate.samples, f"{config.seed}/evaluate/eval")
        left = [episode for episode in episodes if episode not in done]
        if config.policy == "model":
            self.roll_out(scenario, "evaluation", left, config.evaluate.temperature, finished)
        else:
            play(scenario, left, config.policy, finished, self.stop.check)
        trajectories = [done[episode] for episode in episodes]
        check_errors(trajectories, config.max_error_share)
        return trajectories

    def _played(self, scenario: Scenario) -> dict[Episode, Trajectory]:
        """The scenario's episodes that the folder holds; those that ended in an error are played again."""
        played = {}
        for line in (self.folder.path / "trajectories.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
            row = json.loads(line)
            if row["name"] != scenario.name or row["end"] == "error":
                continue
            seed = f"{self.config.seed}/evaluate/eval"
            trajectory = Trajectory(Episode(row["task"], row["seed"], row["sample"], row["horizon"], seed))
            for name in ("goal", "subset", "reward", "score", "success", "end", "trials"):
                setattr(trajectory, name, row[name])
            trajectory.turns = [Turn(**turn) for turn in row["turns"]]
            played[trajectory.episode] = trajectory
            scenario.source = row["source"]
        return played


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


def evaluate(config: EvalConfig, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Evaluate, or go on with an evaluation (see `run.drive`)."""
    return drive(Evaluation, config, resume, terminal)


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
