"""AgentEvol (arXiv 2406.04151): rounds of exploring, keeping what succeeded, and fine-tuning on all of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentgym_train.config_kinds import EvolConfig
from agentgym_train.lora import has_adapter, restart_adapter
from agentgym_train.memory import give_back
from agentgym_train.metrics import episode_metrics, per_scenario
from agentgym_train.models import load_model
from agentgym_train.run import TrainingRun, drive
from agentgym_train.run_folder import Phase, load_state
from agentgym_train.supervised import Batches, imitate, play_oracle, warm_up
from agentgym_train.task_pools import draw, episode_seed, shares
from agentgym_train.terminal import Terminal
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import learning_rate, make_optimiser


class Kept:
    """The episodes that all rounds so far have kept, with their tokens as they were sampled."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self.trajectories: list[Trajectory] = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"trajectories": [_plain(trajectory) for trajectory in self.trajectories]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        self.trajectories = [
            Trajectory(**{**plain, "episode": Episode(**plain["episode"])}) for plain in state["trajectories"]
        ]


class Evol(TrainingRun):
    """A run of rounds."""

    config: EvolConfig
    first_phase = "warm_start"

    @property
    def steps_taken(self) -> int:
        """Steps of exploring, over all rounds."""
        progress, each = self.folder.progress, self.config.rollout.steps_per_round
        return progress.round * each + {"explore": progress.step, "learn": each}.get(progress.phase, 0)

    def run(self) -> dict[str, Any]:
        """Go on from where the folder's checkpoint stands to the end; returns the summary."""
        config, progress = self.config, self.folder.progress
        self.kept = Kept()
        if self.folder.checkpoint is not None and progress.phase != "warm_start":
            load_state(self.kept, self.folder.checkpoint, "kept", self.policy.model.device)
        self.oracle = self._oracle_episodes()
        if config.evaluate.at_start:
            self.evaluate("before")
        while progress.round < config.rounds:
            if progress.phase == "explore":
                self.take_steps(config.rollout.steps_per_round, self.explore)
                self._begin("learn")
                if not len(self._batches()):
                    told = f"no episode scored rollout.min_score={config.rollout.min_score:g}, nothing is learned"
                    self.terminal.say(f"round {progress.round + 1}: {told}", style="bold red")
            self.take_steps(len(self._batches()), self.learn)
            self._end_round()
        self.evaluate("after", f"after-{config.rounds}")
        self.save()
        return self.summary("finished")

    def explore(self, step: int) -> None:
        """Roll out some of the round's tasks at the round's horizon, and keep what scores enough."""
        config, number = self.config, self.folder.progress.round
        with self.timed("rollout"):
            parts = self._sample(number * config.rollout.steps_per_round + step)
        trajectories = [trajectory for part in parts.values() for trajectory in part]
        least = config.rollout.min_score
        kept = [one for one in trajectories if one.end != "error" and one.score >= least and one.sampled]
        self.kept.trajectories += kept
        row = {
            "step": number * config.rollout.steps_per_round + step,
            "phase": "explore",
            "round": number + 1,
            "time": time.time(),
            "horizon": max(scenario.schedule.horizon_at(number) for scenario in self.scenarios),
            **episode_metrics(trajectories),
            **per_scenario(parts),
            "kept": len(kept),
            "seconds/rollout": self.seconds["rollout"],
        }
        self.folder.log(row)
        self.folder.log_trajectories(t.to_row(step=row["step"], phase="explore", name="explore") for t in trajectories)
        self.terminal.step({**row, "step": step}, config.rollout.steps_per_round)

    def learn(self, step: int) -> None:
        """Imitate some of the oracle's episodes and of those that were kept."""
        config, number, batches = self.config, self.folder.progress.round, self._batches()
        examples = [*self.oracle, *self.kept.trajectories]
        lr = learning_rate(step, config.optimiser.lr, config.optimiser.warmup_steps)
        with self.timed("update"):
            numbers = imitate(self, step, [examples[place] for place in batches.at(step)], lr)
        seconds = self.seconds["update"]
        total = self.folder.progress.learned + step  # numbered through, as those of exploring are
        row = {"step": total, "phase": "learn", "round": number + 1, "time": time.time(), **numbers}
        self.folder.log({**row, "seconds/update": seconds})
        self.terminal.step({**row, "step": step, "seconds/update": seconds}, len(batches))

    def states(self) -> dict[str, dict[str, Any]]:
        """State dictionaries of a checkpoint: the optimiser's and what was kept."""
        return {**super().states(), "kept": self.kept.state_dict()}

    def summary(self, status: str) -> dict[str, Any]:
        """Put the run's result together and write it to the folder."""
        summary = {**super().summary(status), "rounds": self.folder.progress.round}
        summary["kept"] = len(self.kept.trajectories)
        self.folder.write_summary(summary)
        return summary

    def _oracle_episodes(self) -> list[Trajectory]:
        """The oracle's episodes of the warm start; if the run stands there, it is done."""
        config, progress = self.config, self.folder.progress
        if progress.phase != "warm_start":
            return self._play_oracle()
        episodes: list[Trajectory] = []
        if config.warm_start.kind == "oracle":
            with self.timed("warm_start"):
                episodes = warm_up(self, config.warm_start)
        progress.phase = "explore"
        self._begin("explore")
        return episodes

    def _play_oracle(self) -> list[Trajectory]:
        return [one for scenario in self.scenarios for one in play_oracle(self, scenario, scenario.pools.warm_start)]

    def _begin(self, phase: Phase) -> None:
        """Begin exploring, or learning: with a fresh optimiser, and perhaps from the base model again."""
        progress, policy = self.folder.progress, self.policy
        if phase == "learn" and self.config.learn.start == "base" and len(self._batches()):
            if has_adapter(policy.model):
                restart_adapter(policy.model, self.config.seed)
            else:
                base = load_model(self.config.model.path, policy.model.device)
                policy.model.load_state_dict(base.state_dict())
        policy.optimiser = make_optimiser(policy.model, self.config.optimiser)
        give_back()
        policy.sync()
        progress.phase, progress.step = phase, 0
        self.save()

    def _end_round(self) -> None:
        """Say what the round has come to, and evaluate where that is asked for."""
        config, progress = self.config, self.folder.progress
        progress.round, progress.learned = progress.round + 1, progress.learned + progress.step
        self._begin("explore")
        every, number = config.evaluate.every, progress.round
        if every and number % every == 0 and number < config.rounds:
            self.evaluate("between", f"between-{number}")

    def _batches(self) -> Batches:
        """What the present round learns from; nothing if no episode was kept and there are none of the oracle."""
        learn, count = self.config.learn, len(self.oracle) + len(self.kept.trajectories)
        horizons = [self.scenarios[0].schedule] * count
        seed = f"{self.config.seed}/round/{self.folder.progress.round}"
        return Batches([0] * count, horizons, learn.batch_size, learn.epochs, seed)

    def _sample(self, step: int) -> dict[str, list[Trajectory]]:
        """Roll out tasks; the steps of all rounds are numbered through, so that tasks come again late."""
        config, number = self.config, self.folder.progress.round
        divided = shares([scenario.spec.weight for scenario in self.scenarios], step, config.rollout.tasks_per_step)
        parts = {}
        for scenario, places in zip(self.scenarios, divided, strict=True):
            tasks = draw(scenario.pools.train, places, config.seed)
            episodes = [
                Episode(
                    task,
                    episode_seed(config.seed, step, scenario.name, place),
                    sample,
                    scenario.schedule.horizon_at(number),
                    f"{config.seed}/explore/{step}",
                )
                for place, task in enumerate(tasks)
                for sample in range(config.rollout.samples_per_task)
            ]
            title = f"round {number + 1}"
            parts[scenario.name] = self.roll_out(scenario, title, episodes, config.rollout.temperature)
        return parts


def evol(config: EvolConfig, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Run or resume a run of AgentEvol (see `run.drive`)."""
    return drive(Evol, config, resume, terminal)


def _plain(trajectory: Trajectory) -> dict[str, Any]:
    """What training needs of a trajectory, without the texts."""
    names: Sequence[str] = ("tokens", "mask", "logprobs", "allowed", "starts", "prompt_length", "score")
    return {"episode": asdict(trajectory.episode), **{name: getattr(trajectory, name) for name in names}}
