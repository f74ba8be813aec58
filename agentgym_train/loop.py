"""The training loop: ScalingInter-RL (arXiv 2509.08755).

`Trainer.train_step` is the algorithm. What it calls stands in files of its own: rollout.py, estimators.py,
packing.py, update.py, critic.py; what every kind of run has, in run.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from agentgym_train.adaptive_horizon import AdaptiveHorizon, Signals
from agentgym_train.config import Config
from agentgym_train.critic import Critic, estimates, update_critic
from agentgym_train.estimators import KL_IN_REWARD, choose, token_advantages
from agentgym_train.groups import Group, GroupsUnderWay
from agentgym_train.memory import give_back
from agentgym_train.metrics import batch_metrics, lag_metrics, per_scenario
from agentgym_train.packing import Row
from agentgym_train.reference import Reference, load_reference
from agentgym_train.run import TrainingRun, check_errors, drive
from agentgym_train.run_folder import RunFolder, load_state
from agentgym_train.scenario import Scenario
from agentgym_train.stop import StopSignals
from agentgym_train.supervised import warm_up
from agentgym_train.task_pools import draw, episode_seed, shares
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import learning_rate, make_optimiser, reference_logprobs, update_policy
from agentgym_train.watchdog import Watchdog


class Trainer(TrainingRun):
    """A run of online reinforcement learning."""

    config: Config
    first_phase = "warm_start"

    def __init__(
        self, config: Config, folder: RunFolder, stop: StopSignals, watchdog: Watchdog, terminal: Terminal
    ) -> None:
        """Load everything (see `Run`)."""
        super().__init__(config, folder, stop, watchdog, terminal)
        self.reference: Reference | None = None
        self.critic: Critic | None = None
        if folder.checkpoint is not None and folder.progress.phase == "train":
            self._make_critic(folder.checkpoint)
        self.groups = {
            scenario.name: GroupsUnderWay(
                partial(scenario.begin, temperature=config.rollout.temperature),
                config.rollout.max_lag,
                config.rollout.late_share,
            )
            for scenario in self.scenarios
        }
        for name, groups in self.groups.items():
            groups.restore(folder.progress.late.get(name, ()))
        self._told: dict[str, str] = {}  # what each adaptive horizon said last

    def run(self) -> dict[str, Any]:
        """Train from where the folder's checkpoint stands to the end; returns the summary."""
        config, progress = self.config, self.folder.progress
        if progress.phase == "warm_start":
            self._warm_start()
        self._load_reference()
        if config.evaluate.at_start:
            self.evaluate("before")
        self.take_steps(config.steps, self.train_step, config.evaluate.every)
        self.evaluate("after", f"after-{config.steps}")
        self.save()
        return self.summary("finished")

    def evaluate(self, name: str, key: str = "") -> None:
        """Evaluate the policy (see `TrainingRun.evaluate`), once no episode of training is under way beside it."""
        if (key or name) not in self.folder.progress.evaluated:
            for scenario in self.scenarios:
                self.work(scenario, "late episodes", self.groups[scenario.name].under_way)
        super().evaluate(name, key)

    def train_step(self, step: int) -> None:
        """Choose tasks, roll out groups at the current horizon, score, update, log."""
        config = self.config
        with self.timed("rollout"):
            parts, lags = self._sample(step)
        trajectories = [trajectory for part in parts.values() for trajectory in part]

        chosen = choose(trajectories, config.algorithm)
        batch = [trajectory for trajectory, kept in zip(trajectories, chosen.trained, strict=True) if kept]
        own = [value for value, kept in zip(chosen.values, chosen.trained, strict=True) if kept]
        rows = self.policy.pack(batch)

        lr = learning_rate(step, config.optimiser.lr, config.optimiser.warmup_steps)
        with self.saved_on_failure(step, batch):
            with self.timed("reference"):
                reference = self._reference_logprobs(rows)
            with self.timed("update"):
                update = self._update(batch, own, rows, reference, lr)
        self.policy.sync()
        give_back()

        row = {
            "step": step,
            "phase": "train",
            "time": time.time(),
            "horizon": max(scenario.schedule.horizon_at(step) for scenario in self.scenarios),
            "lr": lr,
            **batch_metrics(trajectories, chosen, rows),
            **per_scenario(parts),
            **lag_metrics(lags, sum(len(groups.under_way) for groups in self.groups.values())),
            **update,
            **{f"seconds/{phase}": self.seconds[phase] for phase in ("rollout", "reference", "update")},
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=step, phase="train", name="train") for t in trajectories)
        self.terminal.step(row, config.steps)
        self._adapt(row, parts)
        for name, groups in self.groups.items():
            self.folder.progress.late[name] = groups.state()

    def states(self) -> dict[str, dict[str, Any]]:
        """State dictionaries of a checkpoint: the optimiser's and the critic's."""
        states = super().states()
        if self.critic is not None:
            states |= {"critic": self.critic.state_dict(), "critic_optimiser": self.critic_optimiser.state_dict()}
        return states

    def _sample(self, step: int) -> tuple[dict[str, list[Trajectory]], list[int]]:
        """Roll out the step's groups, and further ones while too few have differing rewards, if that is asked for.

        Leaving out groups without variance and sampling others is DAPO's dynamic sampling (arXiv 2503.14476,
        section 3.2).

        Returns:
            By scenario, its trajectories; and for each group, how many steps ago it was begun.
        """
        count, algorithm = self.config.rollout.tasks_per_step, self.config.algorithm
        divided = shares([scenario.spec.weight for scenario in self.scenarios], step, count)
        parts: dict[str, list[Trajectory]] = {scenario.name: [] for scenario in self.scenarios}
        lags: list[int] = []
        for attempt in range(algorithm.resample_rounds + 1):
            seed = f"{self.config.seed}" if attempt == 0 else f"{self.config.seed}/again/{attempt}"
            title = f"step {step + 1}" + (f", round {attempt + 1}" if attempt else "")
            first = attempt * count
            for scenario, places in zip(self.scenarios, divided, strict=True):
                tasks = draw(scenario.pools.train, places, seed)
                groups = self.groups[scenario.name]
                groups.begin(step, self._episodes(scenario, step, tasks, first))
                done = self._finish(scenario, title, partial(groups.enough, step, len(tasks)))
                parts[scenario.name] += [trajectory for group in done for trajectory in group.trajectories]
                lags += [step - group.step for group in done]
                first += len(tasks)
            chosen = choose([trajectory for part in parts.values() for trajectory in part], algorithm)
            if algorithm.name in KL_IN_REWARD or chosen.groups - chosen.zero_variance >= count:
                break
        return parts, lags

    def _finish(self, scenario: Scenario, title: str, until: Callable[[], bool]) -> list[Group]:
        """Roll out a scenario's groups until it is enough, and take those that are finished."""
        groups = self.groups[scenario.name]
        self.work(scenario, title, groups.under_way, until)
        done = groups.take()
        check_errors([one for group in done for one in group.trajectories], self.config.max_error_share)
        return done

    def _episodes(self, scenario: Scenario, step: int, tasks: Sequence[str], first: int) -> list[Episode]:
        """Expand each task into a group of episodes that start from the same text."""
        seed, horizon = self.config.seed, scenario.schedule.horizon_at(step)
        return [
            Episode(task, episode_seed(seed, step, place), sample, horizon, f"{seed}/train/{step}")
            for place, task in enumerate(tasks, start=first)
            for sample in range(self.config.rollout.samples_per_task)
        ]

    def _reference_logprobs(self, rows: Sequence[Row]) -> list[Tensor] | None:
        """Log-probabilities under the reference policy, or None without a KL term."""
        if self.reference is None:
            return None
        temperature, precision = self.config.rollout.temperature, self.config.optimiser.precision
        with self.reference() as model:
            return reference_logprobs(model, rows, temperature, precision, self.stop.check)

    def _update(
        self,
        batch: Sequence[Trajectory],
        own: Sequence[float],
        rows: Sequence[Row],
        reference: Sequence[Tensor] | None,
        lr: float,
    ) -> dict[str, float]:
        """Update the policy, and the critic if there is one; without trajectories there is nothing to learn from."""
        config, algorithm, model = self.config, self.config.algorithm, self.policy.model
        if not rows:
            return {}
        values = None
        if self.critic is not None:
            values = estimates(self.critic, model, rows, config.optimiser.precision)
        advantages, targets = token_advantages(batch, own, rows, reference, values, algorithm)
        metrics = update_policy(
            model,
            self.policy.optimiser,
            rows,
            advantages,
            [trajectory.sampled for trajectory in batch],
            reference,
            config.rollout.temperature,
            lr,
            replace(algorithm, kl_coef=0.0) if algorithm.name in KL_IN_REWARD else algorithm,
            config.optimiser,
            self.stop.check,
            # What is finished late was sampled by other weights than the policy has now.
            engine_tolerance=math.inf if config.rollout.max_lag else algorithm.engine_tolerance,
        )
        if self.critic is not None:
            metrics |= update_critic(
                self.critic,
                model,
                self.critic_optimiser,
                rows,
                targets,
                algorithm.critic_lr,
                config.optimiser,
                lambda: None,  # the policy has moved: the step is carried to its end
            )
        return metrics

    def _adapt(self, row: dict[str, Any], parts: dict[str, list[Trajectory]]) -> None:
        """Let adaptive horizons follow what the step has shown, if an episode of the scenario was played to its end."""
        several = len(self.scenarios) > 1
        for scenario in self.scenarios:
            horizon, prefix = scenario.schedule, f"{scenario.name}/" if several else ""
            if (
                not isinstance(horizon, AdaptiveHorizon)
                or not parts[scenario.name]
                or not row[f"{prefix}tokens/reply_mean"]
            ):
                continue
            told = horizon.observe(
                Signals(
                    row[f"{prefix}success/mean"],
                    row.get("entropy"),
                    row[f"{prefix}tokens/reply_mean"],
                    row[f"{prefix}valid_action_share"],
                )
            )
            which = f" of {scenario.name}" if several else ""
            if told == "raised":
                reason = f"success has settled, the horizon{which} is raised to {horizon.turns}"
                self.terminal.say(f"step {row['step'] + 1}: {reason}")
            elif told and not self._told.get(scenario.name):
                self.terminal.say(f"step {row['step'] + 1}: the horizon{which} is held at {horizon.turns}, {told}")
            self._told[scenario.name] = told

    def _warm_start(self) -> None:
        """Supervised training on oracle episodes, then a fresh optimiser for what follows."""
        config, warm, progress, policy = self.config, self.config.warm_start, self.folder.progress, self.policy
        if warm.kind == "oracle":
            with self.timed("warm_start"):
                warm_up(self, warm)
            policy.sync()
        policy.optimiser = make_optimiser(policy.model, config.optimiser)
        self._make_critic()
        give_back()
        progress.phase, progress.step = "train", 0
        if config.algorithm.kl_coef:
            self.folder.save_reference(policy.model, policy.tokenizer)
        self.save()

    def _make_critic(self, checkpoint: Path | None = None) -> None:
        """The critic of PPO, from the policy as it is now or from a checkpoint."""
        if self.config.algorithm.name != "ppo":
            return
        model = self.policy.model
        self.critic = Critic(model)
        self.critic_optimiser = make_optimiser(self.critic, self.config.optimiser)
        if checkpoint is not None:
            load_state(self.critic, checkpoint, "critic", model.device)
            load_state(self.critic_optimiser, checkpoint, "critic_optimiser", model.device)

    def _load_reference(self) -> None:
        """The policy as it was after the warm start, for the KL term."""
        if self.config.algorithm.kl_coef:
            offload = self.config.model.offload_reference
            self.reference = load_reference(self.policy.model, self.folder.reference, offload)


def train(config: Config, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Run or resume a training run.

    Args:
        config: The configuration; `run_dir` names the folder.
        resume: Continue the run in that folder.
        terminal: Where to show progress.

    Returns:
        The summary: success before and after on held-out tasks, and the gain with its interval.

    Raises:
        ConfigError, ModelError, ChatTemplateError: Before anything is trained, if the run cannot work.
        NumericsError: If a loss or gradient is not finite; the batch is saved in the run folder.
        StopRequested: After Ctrl-C or SIGTERM, once a checkpoint is written.
    """
    return drive(Trainer, config, resume, terminal)
