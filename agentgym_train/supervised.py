"""Supervised training on given episodes: the warm start, and what is built on it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentgym_train.packing import pack
from agentgym_train.run import Run
from agentgym_train.task_pools import draw
from agentgym_train.trajectory import Trajectory
from agentgym_train.update import learning_rate, update_supervised


def fit(
    run: Run, title: str, episodes: Sequence[Trajectory], lr: float, batch_size: int, epochs: int
) -> dict[str, float]:
    """Train on the replies of episodes, from the step at which the run's progress stands.

    Args:
        run: Whose policy is trained; each step is logged under its phase.
        title: Of the progress bar.
        episodes: At least one.
        lr: Learning rate, reached after a tenth of the steps.
        batch_size: Episodes per optimiser step.
        epochs: Passes over the episodes, each in an order of its own.

    Returns:
        The last step's numbers.

    Raises:
        NumericsError: If a loss or gradient is not finite; the batch is saved in the run's folder.
    """
    config, policy, progress = run.config, run.policy, run.folder.progress
    batches = _batches(len(episodes), batch_size, epochs, config.seed)
    warmup = max(1, len(batches) // 10)
    metrics: dict[str, float] = {}
    with run.terminal.bar(title, len(batches)) as advance:
        for step, places in enumerate(batches):
            if step >= progress.step:
                batch = [episodes[place] for place in places]
                rows = pack(batch, config.optimiser.token_budget)
                with run.saved_on_failure(step, batch):
                    metrics = update_supervised(
                        policy.model,
                        policy.optimiser,
                        rows,
                        learning_rate(step, lr, warmup),
                        config.optimiser,
                        run.stop.check,
                    )
                run.folder.log({"step": step, "phase": progress.phase, "time": time.time(), **metrics})
                progress.step = step + 1
            advance()
    return metrics


def _batches(count: int, size: int, epochs: int, seed: int) -> list[list[int]]:
    """Indices of the batches of all epochs, in an order that the seed gives."""
    names = tuple(map(str, range(count)))
    order = [int(name) for name in draw(names, range(count * epochs), seed)]
    return [order[start : start + size] for start in range(0, len(order), size)]
