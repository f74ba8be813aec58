"""A horizon that grows when learning at the present one has settled, beside the schedules fixed beforehand.

After each training step it looks at the steps since the last raise: at the later half of them, but at least at
`window` steps. It raises the horizon by `increment` if

- the success rate has settled: the 95 % interval of its change over these steps, by a least-squares line, lies
  within +-`tolerance`. A rate that rises is outside, and one too noisy to tell has an interval too wide;
- and nothing has collapsed since the raise (`collapse` says what counts).

The schedules of ScalingInter-RL (arXiv 2509.08755, section 3.2) are fixed; this rule is our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

_QUANTILE = 1.96


@dataclass(frozen=True, slots=True)
class Signals:
    """What the rule knows of a training step.

    Attributes:
        success: Mean of the task's own success flag over the step's episodes.
        entropy: Of the policy at sampled tokens, nats; None where there was no update to compute it in, as where all
            groups had no variance.
        reply_tokens: Sampled tokens a reply.
        valid_actions: Share of turns whose action was accepted.
    """

    success: float
    entropy: float | None
    reply_tokens: float
    valid_actions: float


@dataclass
class AdaptiveHorizon:
    """The rule and its state.

    Attributes:
        start: Turns at the beginning.
        increment: Turns added by a raise.
        cap: Largest number of turns.
        window: Smallest number of steps that are looked at.
        tolerance: Change of the success rate over these steps that counts as none.
        turns: Turns of the next step's episodes.
        history: Signals of the steps since the last raise.
    """

    start: int
    increment: int
    cap: int
    window: int = 20
    tolerance: float = 0.1
    turns: int = 0
    history: list[Signals] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If one is not accepted.
        """
        for name, least in (("start", 1), ("increment", 1), ("cap", self.start), ("window", 4)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"AdaptiveHorizon: {name} must be an integer of at least {least}, not {value!r}.")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"AdaptiveHorizon: tolerance must be between 0 and 1, not {self.tolerance!r}.")
        self.turns = self.turns or self.start

    def horizon_at(self, step: int) -> int:
        """Return the present horizon; it does not depend on the step."""
        del step
        return self.turns

    def observe(self, signals: Signals) -> str:
        """Take the signals of a step into account.

        Returns:
            `"raised"`, why it is held (`"collapse: ..."`), or an empty string.
        """
        self.history.append(signals)
        if reason := collapse(self.history, self.window, self.tolerance):
            return f"collapse: {reason}"
        recent = self.history[-max(self.window, len(self.history) // 2) :]
        if self.turns < self.cap and settled([each.success for each in recent], self.window, self.tolerance):
            self.turns = min(self.turns + self.increment, self.cap)
            self.history = []
            return "raised"
        return ""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to remember, as plain data."""
        return {"turns": self.turns, "history": [asdict(signals) for signals in self.history]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.turns = state["turns"]
        self.history = [Signals(**signals) for signals in state["history"]]


def settled(values: Sequence[float], window: int, tolerance: float) -> bool:
    """Whether the change of a series over its length is known to be within the tolerance.

    The change is the slope of the least-squares line times the length; its 95 % interval must lie inside.
    """
    count = len(values)
    if count < window:
        return False
    steps = np.arange(count) - (count - 1) / 2
    series = np.asarray(values, dtype=np.float64)
    spread = float((steps**2).sum())
    slope = float((steps * series).sum()) / spread
    residuals = series - series.mean() - slope * steps
    error = float(np.sqrt((residuals**2).sum() / (count - 2) / spread))
    change, margin = slope * count, _QUANTILE * error * count
    return -tolerance <= change - margin and change + margin <= tolerance


def collapse(history: Sequence[Signals], window: int, tolerance: float) -> str:
    """Say what has collapsed since the first steps of a stage; empty if nothing has.

    Compared are means of what is known over a quarter of the window: the newest against the first ones of the stage,
    for success against the best ones. It is a collapse if success fell by more than twice the tolerance, the entropy
    to a fifth, the share of accepted actions by 0.3, or if replies became four times longer or shorter.
    """
    width = max(1, window // 4)
    if len(history) < 2 * width:
        return ""

    def mean(name: str, part: Sequence[Signals]) -> float:
        known = [value for signals in part if (value := getattr(signals, name)) is not None]
        return float(np.mean(known)) if known else math.nan  # which is not smaller than anything

    first, last = history[:width], history[-width:]
    best = max(mean("success", history[start : start + width]) for start in range(len(history) - width + 1))
    if mean("success", last) < best - 2 * tolerance:
        return f"success fell from {best:.2f} to {mean('success', last):.2f}"
    if mean("entropy", last) < mean("entropy", first) / 5:
        return f"entropy fell from {mean('entropy', first):.3f} to {mean('entropy', last):.3f} nats"
    if mean("valid_actions", last) < mean("valid_actions", first) - 0.3:
        before, after = mean("valid_actions", first), mean("valid_actions", last)
        return f"the share of accepted actions fell from {before:.2f} to {after:.2f}"
    before, after = mean("reply_tokens", first), mean("reply_tokens", last)
    if after > 4 * before or after < before / 4:
        return f"replies went from {before:.0f} to {after:.0f} tokens"
    return ""
