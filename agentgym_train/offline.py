"""Runs that train on what is there before they begin: episodes to imitate, or pairs of which one is preferred."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym_train.checks import make_schedule
from agentgym_train.config import ConfigError
from agentgym_train.config_kinds import DPOConfig, SFTConfig
from agentgym_train.run import TrainingRun
from agentgym_train.run_folder import RunFolder
from agentgym_train.scenario import Scenario
from agentgym_train.stop import StopSignals
from agentgym_train.supervised import Batches
from agentgym_train.terminal import Terminal
from agentgym_train.training_data import fingerprint, turns_of
from agentgym_train.trajectory import Trajectory
from agentgym_train.update import learning_rate
from agentgym_train.watchdog import Watchdog

_FOR_EVER = 1 << 62  # a step after which no schedule grows


@dataclass(frozen=True)
class Example:
    """What is learned from at once.

    Attributes:
        trajectories: An episode; or the one that is preferred and the other one.
        scenario: Whose horizon counts; None for the run's own.
    """

    trajectories: tuple[Trajectory, ...]
    scenario: Scenario | None = None

    @property
    def turns(self) -> int:
        """Number of turns, of the longer one."""
        return max(map(turns_of, self.trajectories))


class OfflineRun(TrainingRun):
    """A run over given examples; its kinds say which, and how a batch is learned from."""

    config: SFTConfig | DPOConfig
    examples_are: ClassVar[str]
    """What messages call them."""

    def __init__(
        self,
        config: SFTConfig | DPOConfig,
        folder: RunFolder,
        stop: StopSignals,
        watchdog: Watchdog,
        terminal: Terminal,
    ) -> None:
        """Load everything (see `Run`), the examples too."""
        super().__init__(config, folder, stop, watchdog, terminal)
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise

    def read(self) -> list[Example]:
        """Return the examples; what is left out is counted in `left_out` by reason."""
        raise NotImplementedError

    def learn(self, step: int, places: Sequence[int], lr: float) -> dict[str, float]:
        """Take a step on some of the examples, given by their places; returns its numbers."""
        raise NotImplementedError

    def run(self) -> dict[str, Any]:
        """Train from where the folder's checkpoint stands to the end; returns the summary."""
        config = self.config
        if config.evaluate.at_start:
            self.evaluate("before")
        self.take_steps(len(self.batches), self.train_step, config.evaluate.every)
        self.evaluate("after", f"after-{config.epochs}")
        self.save()
        return self.summary("finished")

    def prepare(self) -> None:
        """Read the examples and divide them into batches."""
        self.left_out: Counter[str] = Counter()
        with self.timed("data"):
            self.examples = [example for example in self.read() if self._fits(example)]
        told = "".join(f"; {count} left out: {reason}" for reason, count in sorted(self.left_out.items()))
        if not self.examples:
            raise ConfigError(f"there are no {self.examples_are} to train on{told}.")
        self.terminal.say(f"{len(self.examples)} {self.examples_are}{told}")
        self._check_unchanged()
        config = self.config
        steps = -(-len(self.examples) * config.epochs // config.batch_size)
        schedules = [self._schedule(example, steps) for example in self.examples]
        turns = [example.turns for example in self.examples]
        self.batches = Batches(turns, schedules, config.batch_size, config.epochs, config.seed)
        if not self.batches.at(0):
            raise ConfigError(
                f"horizon={config.horizon!r}: no example is so short at the first step; the shortest one has "
                f"{min(turns)} turns."
            )

    def train_step(self, step: int) -> None:
        """Learn from the examples of a step, and log it."""
        optimiser, batches = self.config.optimiser, self.batches
        places, lr = batches.at(step), learning_rate(step, optimiser.lr, optimiser.warmup_steps)
        with self.timed("update"):
            numbers = self.learn(step, places, lr)
        row = {
            "step": step,
            "phase": self.folder.progress.phase,
            "time": time.time(),
            "horizon": max(horizon.horizon_at(step) for horizon in batches.horizons),
            "turns/mean": sum(batches.turns[place] for place in places) / len(places),
            "lr": lr,
            **numbers,
            "seconds/update": self.seconds["update"],
        }
        self.folder.log(row)
        self.terminal.step(row, len(batches))

    def _fits(self, example: Example) -> bool:
        """Whether an example can be trained on; counts why not."""
        horizon, context = self._schedule(example, 1).horizon_at(_FOR_EVER), self.config.rollout.max_context
        if example.turns > horizon:
            self.left_out[f"more turns than the horizon's {horizon}"] += 1
            return False
        if not all(one.sampled for one in example.trajectories):
            self.left_out["replies without a token"] += 1
            return False
        longest = max(stop - start for one in example.trajectories for start, _, stop in one.segments())
        if longest > context:
            self.left_out[f"more tokens than rollout.max_context={context}"] += 1
            return False
        return True

    def _schedule(self, example: Example, steps: int) -> Any:
        scenario = example.scenario
        if scenario is None:
            return make_schedule(self.config, steps=steps)
        return make_schedule(self.config, scenario.spec, scenario.where, steps)

    def _check_unchanged(self) -> None:
        progress = self.folder.progress
        found = fingerprint(trajectory for example in self.examples for trajectory in example.trajectories)
        if progress.data and progress.data != found:
            raise ConfigError(
                f"the {self.examples_are} are not those that the run in {self.folder.path} began with, so it cannot be "
                "continued exactly. Put the data back as they were, or start again in another --run-dir."
            )
        progress.data = found
