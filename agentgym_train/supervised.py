"""Supervised steps: which episodes each trains on, and the warm start, which is made of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.config import WarmStartConfig
from agentgym_train.run import TrainingRun
from agentgym_train.scenario import Scenario
from agentgym_train.task_pools import draw
from agentgym_train.trajectory import Trajectory
from agentgym_train.update import learning_rate, update_supervised
from agentgym_wrappers import Schedule


@dataclass(frozen=True)
class Batches:
    """Which examples each step trains on, as a pure function of the step, so that resuming needs no state.

    Examples are drawn in a random order, all of them before one comes again. Under a horizon that grows, a step
    draws among those that are no longer than the horizon allows.

    Attributes:
        turns: Length of each example.
        horizons: The schedule that counts for each example.
        size: Examples a step.
        epochs: How often there are as many draws as examples.
        seed: Seed of the order.
    """

    turns: Sequence[int]
    horizons: Sequence[Schedule | AdaptiveHorizon]
    size: int
    epochs: int
    seed: int | str

    def __len__(self) -> int:
        """Number of steps; the last one may be smaller."""
        return -(-len(self.turns) * self.epochs // self.size)

    def at(self, step: int) -> list[int]:
        """Return the indices of a step's examples; none if all are too long for the step's horizon."""
        pool = tuple(str(place) for place in range(len(self.turns)) if self.turns[place] <= self._horizon(place, step))
        last = min((step + 1) * self.size, len(self.turns) * self.epochs)
        return [int(name) for name in draw(pool, range(step * self.size, last), self.seed)] if pool else []

    def _horizon(self, place: int, step: int) -> int:
        return self.horizons[place].horizon_at(step)


def imitate(run: TrainingRun, step: int, batch: Sequence[Trajectory], lr: float) -> dict[str, float]:
    """Take one step on the likelihood of a batch's replies.

    Returns:
        `loss` in nats a token, `grad_norm`, `tokens`, `lr`.

    Raises:
        NumericsError: If a loss or gradient is not finite; the batch is saved in the run's folder.
    """
    policy = run.policy
    with run.saved_on_failure(step, batch):
        metrics = update_supervised(
            policy.model, policy.optimiser, policy.pack(batch), lr, run.config.optimiser, run.stop.check
        )
    return {**metrics, "lr": lr}


def warm_up(run: TrainingRun, warm: WarmStartConfig) -> list[Trajectory]:
    """Imitate the oracle on the tasks of the warm start, from the step at which the run's progress stands.

    Args:
        run: Whose policy is trained; each step is logged under its phase.
        warm: How; the learning rate is reached after a tenth of the steps.

    Returns:
        The oracle's episodes; without those of tasks that it did not solve.
    """
    progress, terminal = run.folder.progress, run.terminal
    episodes = [one for scenario in run.scenarios for one in play_oracle(run, scenario, scenario.pools.warm_start)]
    turns, horizons = [0] * len(episodes), [run.scenarios[0].schedule] * len(episodes)  # of any length
    batches = Batches(turns, horizons, warm.batch_size, warm.epochs, run.config.seed)
    metrics: dict[str, float] = {}
    with terminal.bar("warm start", len(batches)) as advance:
        for step in range(len(batches)):
            if step >= progress.step:
                batch = [episodes[place] for place in batches.at(step)]
                metrics = imitate(run, step, batch, learning_rate(step, warm.lr, max(1, len(batches) // 10)))
                run.folder.log({"step": step, "phase": progress.phase, "time": time.time(), **metrics})
                progress.step = step + 1
            advance()
    if metrics:
        terminal.say(f"warm start: {len(episodes)} oracle episodes, loss {metrics['loss']:.3f} nats a token")
    return episodes


def play_oracle(run: TrainingRun, scenario: Scenario, tasks: Sequence[str]) -> list[Trajectory]:
    """Play the oracle's episodes of a scenario's tasks, and say how many it did not solve."""
    with run.terminal.bar("oracle", len(tasks)) as advance:
        episodes = scenario.demonstrations(run.policy.chat, tasks, advance, run.stop.check)
    if len(episodes) < len(tasks):
        unsolved = len(tasks) - len(episodes)
        run.terminal.say(f"{scenario.name}: the oracle did not solve {unsolved} of {len(tasks)} tasks; left out")
    return episodes
