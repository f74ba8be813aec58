"""Direct preference optimisation over multi-turn episodes (arXiv 2305.18290), masked to the policy's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from agentgym_train.config import OptimiserConfig
from agentgym_train.config_kinds import DPOConfig
from agentgym_train.logprobs import autocast, token_logprobs
from agentgym_train.memory import set_update_mode
from agentgym_train.offline import Example, OfflineRun
from agentgym_train.packing import Row
from agentgym_train.preferences import read_pairs
from agentgym_train.run import drive
from agentgym_train.run_folder import load_state
from agentgym_train.terminal import Terminal
from agentgym_train.update import optimiser_step, require_finite


class Reference:
    """Log-probabilities of all pairs under the model as it was at the start, [pairs, 2]: chosen and rejected."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.logprobs = torch.empty(0, 2)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"logprobs": self.logprobs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        self.logprobs = state["logprobs"]


class DPO(OfflineRun):
    """A run of direct preference optimisation."""

    config: DPOConfig
    first_phase = "dpo"
    examples_are = "pairs"

    def read(self) -> list[Example]:
        """The pairs that the file holds, or that its episodes make."""
        return read_pairs(self.config.pairs.path, self.policy.chat, self.held_out_tasks, self.left_out)

    def prepare(self) -> None:
        """Read the pairs, and compute their log-probabilities under the reference: the model at the start."""
        self.reference = Reference()
        if (checkpoint := self.folder.checkpoint) is not None:
            load_state(self.reference, checkpoint, "reference", torch.device("cpu"))
        super().prepare()
        if len(self.reference.logprobs) == len(self.examples):
            return
        size = self.config.batch_size
        chunks = [range(first, first + size) for first in range(0, len(self.examples), size)]
        pieces = []
        with self.timed("reference"), self.terminal.bar("reference", len(chunks)) as advance:
            for chunk in chunks:
                places = [place for place in chunk if place < len(self.examples)]
                sums = sequence_logprobs(
                    self.policy.model, self._rows(places), 2 * len(places), self.precision, self.stop.check
                )
                pieces.append(sums.view(2, -1).T)
                advance()
        self.reference.logprobs = torch.cat(pieces)

    def states(self) -> dict[str, dict[str, Any]]:
        """State dictionaries of a checkpoint: the optimiser's and the reference's."""
        return {**super().states(), "reference": self.reference.state_dict()}

    def learn(self, step: int, places: Sequence[int], lr: float) -> dict[str, float]:
        """Take a step on the preference loss of some pairs."""
        config, both = self.config, self._both(places)
        lengths = torch.tensor([trajectory.sampled for trajectory in both]).view(2, -1).T
        with self.saved_on_failure(step, both):
            return update_preferences(
                self.policy.model,
                self.policy.optimiser,
                self._rows(places),
                self.reference.logprobs[list(places)],
                lengths if config.pairs.length_normalise else torch.ones_like(lengths),
                config.pairs.beta,
                lr,
                config.optimiser,
                self.stop.check,
            )

    @property
    def precision(self) -> str:
        """Of the update."""
        return self.config.optimiser.precision

    def _both(self, places: Sequence[int]) -> list[Any]:
        """The chosen ones of some pairs, then the rejected ones in the same order."""
        pairs = [self.examples[place].trajectories for place in places]
        return [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]

    def _rows(self, places: Sequence[int]) -> list[Row]:
        return self.policy.pack(self._both(places))


def preference_loss(logprobs: Tensor, reference: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Compute -log sigmoid(beta ((chosen - reference chosen) - (rejected - reference rejected))) for each pair.

    It is equation 7 of arXiv 2305.18290. Each value is the sum of the log-probabilities of the tokens that the policy
    wrote in an episode; what the environment wrote has none.

    Args:
        logprobs: [pairs, 2] chosen and rejected under the policy.
        reference: [pairs, 2] the same under the reference.
        beta: Strength of the tie to the reference.

    Returns:
        The losses, [pairs], and the implicit rewards `beta (logprobs - reference)`, [pairs, 2].
    """
    rewards = beta * (logprobs - reference)
    return -logsigmoid(rewards[:, 0] - rewards[:, 1]), rewards


def sequence_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], count: int, precision: str, check: Callable[[], None]
) -> Tensor:
    """Sums of the log-probabilities of the trained tokens of each trajectory, without gradient, [count]."""
    set_update_mode(model)
    sums = torch.zeros(count)
    with torch.no_grad(), autocast(model, precision):
        for row in rows:
            check()
            sums.index_add_(0, row.owners, token_logprobs(model, row, temperature=1.0)[0].float().cpu())
    return sums


def update_preferences(
    model: PreTrainedModel,
    optimiser: torch.optim.AdamW,
    rows: Sequence[Row],
    reference: Tensor,
    lengths: Tensor,
    beta: float,
    lr: float,
    optimiser_config: OptimiserConfig,
    check: Callable[[], None],
) -> dict[str, float]:
    """Take one step on the mean preference loss of a batch of pairs.

    The loss joins trajectories that may lie in different rows, so it is differentiated in two passes: first with
    respect to each trajectory's log-probability, then, a row at a time, to the weights. The gradient does not depend
    on the packing, and only one row's graph is kept at a time.

    Args:
        model: The policy.
        optimiser: Its optimiser.
        rows: The packed batch: the chosen trajectories, then the rejected ones in the same order.
        reference: [pairs, 2] log-probabilities under the reference.
        lengths: [pairs, 2] what each log-probability is divided by; ones for plain DPO.
        beta: Strength of the tie to the reference.
        lr: Learning rate.
        optimiser_config: Gradient clipping and precision.
        check: Called before each row; may raise to abandon the step, which then leaves no trace.

    Returns:
        `loss`; `accuracy`, the share of pairs whose chosen one has the larger implicit reward; `margin`, by how much;
        `reward/chosen`, `reward/rejected`, `logprob/chosen`, `logprob/rejected`, `grad_norm`, `tokens`.

    Raises:
        NumericsError: If anything is not finite.
    """
    pairs, precision = len(reference), optimiser_config.precision
    sums = sequence_logprobs(model, rows, 2 * pairs, precision, check).view(2, pairs).T
    leaf = sums.clone().requires_grad_()
    losses, rewards = preference_loss(leaf / lengths, reference / lengths, beta)
    require_finite("loss", losses.mean())
    losses.mean().backward()
    assert leaf.grad is not None
    weights = leaf.grad.T.reshape(-1)  # [2 pairs], as the trajectories are numbered
    optimiser.zero_grad(set_to_none=True)
    for row in rows:
        check()
        with autocast(model, precision):
            logprobs, _ = token_logprobs(model, row, temperature=1.0)
        (weights[row.owners].to(logprobs.device) * logprobs).sum().backward()
    norm = optimiser_step(model, optimiser, lr, optimiser_config)
    rewards, margins = rewards.detach(), (rewards[:, 0] - rewards[:, 1]).detach()
    return {
        "loss": float(losses.detach().mean()),
        "accuracy": float((margins > 0).float().mean()),
        "margin": float(margins.mean()),
        "reward/chosen": float(rewards[:, 0].mean()),
        "reward/rejected": float(rewards[:, 1].mean()),
        "logprob/chosen": float(sums[:, 0].mean()),
        "logprob/rejected": float(sums[:, 1].mean()),
        "grad_norm": norm,
        "tokens": float(sum(len(row.targets) for row in rows)),
    }


def dpo(config: DPOConfig, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Run or resume a run of direct preference optimisation (see `run.drive`)."""
    return drive(DPO, config, resume, terminal)
