"""What every kind of run has: scenarios, a sampler and a folder; if it trains, steps, evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.checks import check_config
from agentgym_train.config import RunConfig, TrainingConfig
from agentgym_train.engines import EngineError
from agentgym_train.memory import give_back
from agentgym_train.metrics import evaluation_metrics, per_scenario
from agentgym_train.policy import Policy, Sampler, load_policy, load_sampler
from agentgym_train.run_folder import Phase, RunFolder
from agentgym_train.scenario import Scenario
from agentgym_train.statistics import paired_bootstrap
from agentgym_train.stop import StopRequested, StopSignals
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import NumericsError
from agentgym_train.watchdog import Watchdog


class Run:
    """One run. What it does stands in `run` of its kinds, such as `loop.Trainer` and `evaluation.Evaluation`."""

    config: RunConfig

    def __init__(
        self, config: RunConfig, folder: RunFolder, stop: StopSignals, watchdog: Watchdog, terminal: Terminal
    ) -> None:
        """Load everything; the folder's newest checkpoint if it has one.

        Raises:
            ConfigError, ModelError, ChatTemplateError, EngineError: If something that the run needs is missing or
                wrong.
        """
        check_config(config)
        self.config, self.folder, self.stop, self.terminal = config, folder, stop, terminal
        self.scenarios = [
            Scenario(config, spec, f"tasks[{place}]" if config.tasks else "env")
            for place, spec in enumerate(config.scenarios)
        ]
        self.seconds: dict[str, float] = {}  # by phase, of the last time that the phase ran
        self.sampler = self.load()
        try:
            if self.sampler is not None:
                for scenario in self.scenarios:
                    scenario.open(self.sampler.engine, self.sampler.chat, stop.check, watchdog)
        except BaseException:
            self.close()
            raise

    def load(self) -> Sampler | None:
        """Load the model; None if no model acts."""
        return load_sampler(self.config)

    def run(self) -> dict[str, Any]:
        """Go on from where the folder's checkpoint stands to the end; returns the summary."""
        raise NotImplementedError

    def interrupted(self) -> str:
        """Leave things in order after a stop; returns what to tell."""
        return "stopped"

    def roll_out(
        self,
        scenario: Scenario,
        title: str,
        episodes: Sequence[Episode],
        temperature: float,
        on_done: Callable[[Trajectory], None] = lambda _: None,
    ) -> list[Trajectory]:
        """Roll out episodes to their ends (see `work`); too many errors end the run."""
        trajectories = scenario.begin(episodes, temperature)
        self.work(scenario, title, trajectories, on_done=on_done)
        check_errors(trajectories, self.config.max_error_share)
        return trajectories

    def work(
        self,
        scenario: Scenario,
        title: str,
        trajectories: Sequence[Trajectory],
        until: Callable[[], bool] = lambda: False,
        on_done: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        """Roll out what a scenario has begun under a progress bar; a damaged model ends the run.

        Args:
            scenario: Whose episodes are rolled out.
            title: Of the bar.
            trajectories: Those that are under way.
            until: Whether what is done is enough.
            on_done: Called with each finished trajectory.
        """
        if not trajectories:
            return
        if len(self.scenarios) > 1:
            title = f"{title}, {scenario.name}"
        with self.terminal.bar(title, len(trajectories)) as advance:

            def finished(trajectory: Trajectory) -> None:
                on_done(trajectory)
                advance()

            try:
                scenario.work(finished, until)
            except EngineError as error:
                episodes = [asdict(trajectory.episode) for trajectory in trajectories]
                where = self.folder.save_failed_batch({"step": self.folder.progress.step, "episodes": episodes})
                raise EngineError(f"{title}: {error} The episodes are in {where}.") from error
        give_back()

    def close(self) -> None:
        """Close the environments and the engine."""
        for scenario in self.scenarios:
            scenario.close()
        if self.sampler is not None:
            self.sampler.engine.close()

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


class TrainingRun(Run):
    """A run that changes a model."""

    config: TrainingConfig
    first_phase: ClassVar[Phase]
    """What the run begins with; steps are counted by phase."""

    def __init__(
        self, config: TrainingConfig, folder: RunFolder, stop: StopSignals, watchdog: Watchdog, terminal: Terminal
    ) -> None:
        """Load everything (see `Run`)."""
        if folder.checkpoint is None:
            folder.progress.phase = self.first_phase
        super().__init__(config, folder, stop, watchdog, terminal)
        for scenario in self.scenarios:
            if isinstance(scenario.schedule, AdaptiveHorizon) and scenario.name in folder.progress.horizons:
                scenario.schedule.restore(folder.progress.horizons[scenario.name])
        if self.policy.packing_problem:
            terminal.say(f"prompts are computed once for each episode: {self.policy.packing_problem}")

    @property
    def held_out_tasks(self) -> set[str]:
        """Tasks that the run is evaluated on, and never trained on."""
        return {task for scenario in self.scenarios for task in scenario.pools.test}

    @property
    def steps_taken(self) -> int:
        """Steps that evaluations are counted by; those of a warm start are none."""
        return 0 if self.folder.progress.phase == "warm_start" else self.folder.progress.step

    def load(self) -> Policy:
        """Load the policy."""
        self.policy = load_policy(self.config, self.folder.checkpoint)
        return self.policy

    def interrupted(self) -> str:
        """Write a checkpoint and the summary so far."""
        self.save()
        self.summary("interrupted")
        return f"stopped; continue with: agentgym {self.config.command} --resume {self.config.run_dir}"

    def take_steps(self, total: int, step: Callable[[int], None], evaluate_every: int = 0) -> None:
        """Take the steps of a phase that are left, with evaluations and checkpoints in between.

        Args:
            total: Steps of the whole phase.
            step: Takes the step of a number.
            evaluate_every: Steps between two evaluations; 0 for none.
        """
        config, progress = self.config, self.folder.progress
        for number in range(progress.step, total):
            if evaluate_every and number and number % evaluate_every == 0:
                self.evaluate("between", f"between-{number}")
            self.stop.check()
            step(number)
            progress.step = number + 1
            if config.checkpoint_every and progress.step % config.checkpoint_every == 0:
                self.save()

    def evaluate(self, name: str, key: str = "") -> None:
        """Evaluate the policy on held-out tasks and log the result, once per key (by default the name)."""
        config, progress, key = self.config, self.folder.progress, key or name
        if key in progress.evaluated:
            return
        self.policy.sync()
        # The same episodes and draws at every evaluation: a policy that has not changed does not seem to gain.
        samples, temperature = config.evaluate.samples, config.evaluate.temperature
        seed = f"{config.seed}/evaluate"
        with self.timed("evaluate"):
            parts = {
                scenario.name: self.roll_out(
                    scenario, f"evaluation {name}", scenario.held_out(samples, seed), temperature
                )
                for scenario in self.scenarios
            }
        trajectories = [trajectory for part in parts.values() for trajectory in part]
        row = {
            "step": self.steps_taken,
            "phase": "eval",
            "name": name,
            "time": time.time(),
            "horizon": max(scenario.evaluate_horizon for scenario in self.scenarios),
            "temperature": config.evaluate.temperature,
            **evaluation_metrics(trajectories),
            **per_scenario(parts),
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=row["step"], phase="eval", name=name) for t in trajectories)
        progress.evaluated.append(key)
        if config.keep_best and name != "before" and row["success/mean"] > progress.best:
            progress.best = row["success/mean"]
            self.folder.save_best(self.policy.model, self.policy.tokenizer, row)
        self.terminal.say(
            f"evaluation {name} (step {row['step']}): success {row['success/mean']:.3f} on {row['tasks']} held-out "
            f"tasks x {row['samples']} samples, {row['horizon']} turns, temperature {config.evaluate.temperature}"
        )
        if len(parts) > 1:
            self.terminal.say(", ".join(f"  {name} {row[f'{name}/success/mean']:.3f}" for name in parts))

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
            "command": config.command,
            "status": status,
            "env": ", ".join(scenario.spec.id for scenario in self.scenarios),
            "subsets": [subset for scenario in self.scenarios for subset in scenario.spec.subsets],
            "model": config.model.path,
            "seed": config.seed,
            "steps": self.steps_taken,
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
        elif "after" in results:
            summary["after"] = results["after"]["success/mean"]
        summary["checkpoint"] = str(self.folder.checkpoint)
        if progress.best >= 0:
            summary["best"] = str(self.folder.path / "best")
        self.folder.write_summary(summary)
        return summary

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


def drive(kind: type[Run], config: RunConfig, resume: bool, terminal: Terminal | None) -> dict[str, Any]:
    """Make a run of a kind, or open it again, and carry it to its end.

    Args:
        kind: The kind of run.
        config: Its configuration; `run_dir` names the folder.
        resume: Continue the run in that folder.
        terminal: Where to show progress.

    Returns:
        The summary.

    Raises:
        ConfigError, ModelError, ChatTemplateError, EngineError: Before anything is done, if the run cannot work.
        EngineError, FolderError, NumericsError, WorkerError: If it cannot go on.
        StopRequested: After Ctrl-C or SIGTERM, once everything is in order.
    """
    terminal = terminal or Terminal()
    check_config(config)
    with ExitStack() as opened:
        folder = RunFolder(Path(config.run_dir), config, resume)
        opened.callback(folder.close)
        stop = opened.enter_context(StopSignals())
        watchdog = opened.enter_context(Watchdog(config.stall_seconds, terminal.say, folder.path / "stalls.txt"))
        try:
            run = kind(config, folder, stop, watchdog, terminal)
        except Exception as error:
            if not resume:
                folder.abandon()
            if isinstance(error, StopRequested):
                terminal.say("stopped before anything was done")
            raise
        opened.callback(run.close)
        try:
            return run.run()
        except StopRequested:
            terminal.say(run.interrupted())
            raise


def check_errors(trajectories: Sequence[Trajectory], limit: float) -> None:
    """End the run if too many episodes ended in an error.

    Raises:
        EngineError: If more than the share `limit` did.
    """
    errors = [trajectory.error for trajectory in trajectories if trajectory.end == "error"]
    if len(errors) > limit * len(trajectories):
        raise EngineError(
            f"{len(errors)} of {len(trajectories)} episodes ended in an error, more than max_error_share={limit}. "
            f"The first one:\n{errors[0]}"
        )
