"""What every kind of run has: a policy, scenarios and a folder; evaluations, checkpoints, a summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.checks import check_config
from agentgym_train.config import Config
from agentgym_train.engines import EngineError
from agentgym_train.memory import give_back
from agentgym_train.metrics import evaluation_metrics, per_scenario
from agentgym_train.policy import load_policy
from agentgym_train.run_folder import RunFolder
from agentgym_train.scenario import Scenario
from agentgym_train.statistics import paired_bootstrap
from agentgym_train.stop import StopRequested, StopSignals
from agentgym_train.task_pools import episode_seed
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import NumericsError


class Run:
    """One run. What it does stands in `run` of its kinds, such as `loop.Trainer`."""

    command: ClassVar[str]
    """Which `agentgym` command continues it."""

    def __init__(self, config: Config, folder: RunFolder, stop: StopSignals, terminal: Terminal) -> None:
        """Load everything; the folder's newest checkpoint if it has one.

        Raises:
            ConfigError, ModelError, ChatTemplateError: If something that the run needs is missing or wrong.
        """
        check_config(config)
        self.config, self.folder, self.stop, self.terminal = config, folder, stop, terminal
        self.scenarios = [
            Scenario(config, spec, f"tasks[{place}]" if config.tasks else "env")
            for place, spec in enumerate(config.scenarios)
        ]
        for scenario in self.scenarios:
            if isinstance(scenario.schedule, AdaptiveHorizon) and scenario.name in folder.progress.horizons:
                scenario.schedule.restore(folder.progress.horizons[scenario.name])
        self.policy = load_policy(config, folder.checkpoint)
        self.seconds: dict[str, float] = {}  # by phase, of the last time that the phase ran
        try:
            for scenario in self.scenarios:
                scenario.open(self.policy.engine, self.policy.chat, stop.check)
        except BaseException:
            self.close()
            raise

    def run(self) -> dict[str, Any]:
        """Go on from where the folder's checkpoint stands to the end; returns the summary."""
        raise NotImplementedError

    def evaluate(self, name: str, key: str = "") -> None:
        """Roll out held-out tasks at the evaluation horizon, once per key (by default the name)."""
        config, progress, spec = self.config, self.folder.progress, self.config.evaluate
        key = key or name
        if key in progress.evaluated:
            return
        with self.timed("evaluate"):
            parts = {
                scenario.name: self.roll_out(
                    scenario,
                    f"evaluation {name}",
                    [
                        # The same episodes at every evaluation and in every run: only the policy's sampling differs.
                        Episode(
                            task,
                            episode_seed("evaluate", task),
                            sample,
                            scenario.evaluate_horizon,
                            f"{config.seed}/evaluate/{key}",
                        )
                        for task in scenario.pools.test
                        for sample in range(spec.samples)
                    ],
                    spec.temperature,
                )
                for scenario in self.scenarios
            }
        trajectories = [trajectory for part in parts.values() for trajectory in part]
        step = progress.step
        row = {
            "step": step,
            "phase": "eval",
            "name": name,
            "time": time.time(),
            "horizon": max(scenario.evaluate_horizon for scenario in self.scenarios),
            "temperature": spec.temperature,
            **evaluation_metrics(trajectories),
            **per_scenario(parts),
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=step, phase="eval", name=name) for t in trajectories)
        progress.evaluated.append(key)
        if config.keep_best and name != "before" and row["success/mean"] > progress.best:
            progress.best = row["success/mean"]
            self.folder.save_best(self.policy.model, self.policy.tokenizer, row)
        self.terminal.say(
            f"evaluation {name} (step {step}): success {row['success/mean']:.3f} on {row['tasks']} held-out tasks "
            f"x {row['samples']} samples, {row['horizon']} turns, temperature {spec.temperature}"
        )

    def roll_out(
        self, scenario: Scenario, title: str, episodes: Sequence[Episode], temperature: float | None = None
    ) -> list[Trajectory]:
        """Roll out episodes under a progress bar; too many errors, or a damaged model, end the run."""
        if not episodes:
            return []
        if temperature is None:
            temperature = self.config.rollout.temperature
        if len(self.scenarios) > 1:
            title = f"{title}, {scenario.name}"
        with self.terminal.bar(title, len(episodes)) as advance:
            try:
                trajectories = scenario.roll_out(episodes, temperature, lambda _: advance())
            except EngineError as error:
                content = {"step": self.folder.progress.step, "episodes": [asdict(episode) for episode in episodes]}
                where = self.folder.save_failed_batch(content)
                raise EngineError(f"{title}: {error} The episodes are in {where}.") from error
        give_back()
        _check_errors(trajectories, self.config.max_error_share)
        return trajectories

    def save(self) -> None:
        """Write a checkpoint."""
        self.folder.progress.horizons = {
            scenario.name: scenario.schedule.state()
            for scenario in self.scenarios
            if isinstance(scenario.schedule, AdaptiveHorizon)
        }
        self.folder.save_checkpoint(self.policy.model, self.policy.tokenizer, self.states())

    def states(self) -> dict[str, dict[str, Any]]:
        """State dictionaries of a checkpoint, beside the model's."""
        return {"optimiser": self.policy.optimiser.state_dict()}

    def summary(self, status: str) -> dict[str, Any]:
        """Put the run's result together and write it to the folder."""
        config, progress = self.config, self.folder.progress
        results = progress.evaluations
        summary: dict[str, Any] = {
            "status": status,
            "env": ", ".join(scenario.spec.id for scenario in self.scenarios),
            "subsets": [subset for scenario in self.scenarios for subset in scenario.spec.subsets],
            "model": config.model.path,
            "seed": config.seed,
            "steps": progress.step if progress.phase == "train" else 0,
            "steps_without_update": progress.steps_without_update,
            "horizon_eval": max(scenario.evaluate_horizon for scenario in self.scenarios),
            "seconds": progress.seconds,
        }
        if "before" in results and "after" in results:
            before, after = results["before"], results["after"]
            summary |= {"before": before["success/mean"], "after": after["success/mean"]}
            first, last = before["success/by_task"], after["success/by_task"]
            # A task whose every episode ended in an error is in one of them only.
            if common := first.keys() & last.keys():
                gain, low, high = paired_bootstrap(
                    {task: first[task] for task in common}, {task: last[task] for task in common}
                )
                summary |= {"gain": gain, "gain_low": low, "gain_high": high}
        summary["checkpoint"] = str(self.folder.checkpoint)
        self.folder.write_summary(summary)
        return summary

    def close(self) -> None:
        """Close the environments."""
        for scenario in self.scenarios:
            scenario.close()

    @contextmanager
    def saved_on_failure(self, step: int, batch: Sequence[Trajectory]) -> Iterator[None]:
        """Save the batch if a number of its update is not finite."""
        try:
            yield
        except NumericsError as error:
            content = {"step": step, "batch": [trajectory.to_data() for trajectory in batch]}
            where = self.folder.save_failed_batch(content)
            raise NumericsError(
                f"step {step}: {error}. The batch is in {where}; the last checkpoint is from before it. Try a lower "
                "learning rate."
            ) from error

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure wall time, for the step's row and the summary."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = time.perf_counter() - begin
            spent = self.folder.progress.seconds
            spent[phase] = spent.get(phase, 0.0) + self.seconds[phase]


def drive(kind: type[Run], config: Config, resume: bool, terminal: Terminal | None) -> dict[str, Any]:
    """Make a run of a kind, or open it again, and carry it to its end (see `loop.train`)."""
    terminal = terminal or Terminal()
    check_config(config)
    folder = RunFolder(Path(config.run_dir), config, resume)
    try:
        with StopSignals() as stop:
            try:
                run = kind(config, folder, stop, terminal)
            except Exception:
                if not resume:
                    folder.abandon()
                raise
            try:
                return run.run()
            except StopRequested:
                run.save()
                run.summary("interrupted")
                terminal.say(f"stopped; continue with: agentgym {kind.command} --resume {config.run_dir}")
                raise
            finally:
                run.close()
    finally:
        folder.close()


def _check_errors(trajectories: Sequence[Trajectory], limit: float) -> None:
    errors = [trajectory.error for trajectory in trajectories if trajectory.end == "error"]
    if len(errors) > limit * len(trajectories):
        raise EngineError(
            f"{len(errors)} of {len(trajectories)} episodes ended in an error, more than max_error_share={limit}. "
            f"The first one:\n{errors[0]}"
        )
