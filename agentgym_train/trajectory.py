"""What a rollout leaves behind: sampled tokens, their mask and log-probabilities, and what happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to roll out; the members of a group differ in `sample` only.

    Attributes:
        task: Task id.
        seed: Seed of the environment; equal within a group, so that all start from the same text.
        sample: Number within the group.
        horizon: Largest number of turns.
        sampling_seed: Prefix of the seeds of the sampler, unique to (run, step, purpose).
    """

    task: str
    seed: int
    sample: int
    horizon: int
    sampling_seed: str


@dataclass(slots=True)
class Turn:
    """One reply of the policy and the answer to it.

    Attributes:
        start: Index in `Trajectory.tokens` of the reply's first sampled token.
        stop: Index after its last one.
        reply: The reply as text.
        action: The action found in the reply; empty if there was none.
        observation: What the environment answered; to a plan, what the agent's program answered.
        reward: Reward of this turn.
        valid: Whether the environment accepted the action.
        finish: Why sampling stopped: `"stop"` or `"length"`.
        acted: Whether the reply was sent to the environment; plans and reflections are not.
        trial: Attempt at the task, from 1.
    """

    start: int
    stop: int
    reply: str
    action: str
    observation: str
    reward: float
    valid: bool
    finish: Literal["stop", "length"]
    acted: bool = True
    trial: int = 1


class Segment(NamedTuple):
    """One sequence of a trajectory that the engine saw, as indices of its token lists.

    Attributes:
        start: Its first token.
        reply: Its first sampled token.
        stop: After its last token.
    """

    start: int
    reply: int
    stop: int


@dataclass(slots=True)
class Trajectory:
    """One rolled-out episode, or the trials of one. The token lists have one entry per token.

    An episode whose prompt always shows the whole history is one sequence: prompt, reply, observation, reply, ...
    Otherwise each prompt that is not the sequence so far begins a further one behind it, so the order of the
    sampled tokens is always that of the turns.

    Attributes:
        episode: What was asked for.
        instruction: The system message.
        prompt: It and the first user message.
        tokens: Token ids.
        mask: 1 on tokens that the policy sampled (end-of-turn included), 0 on prompts and observations.
        logprobs: Log-probability that the engine gave each sampled token at the sampling temperature; 0.0
            where the mask is 0, never used there.
        allowed: Token ids among which each sampled token was chosen; empty where it was the whole vocabulary.
        starts: Index of each sequence's first token.
        prompt_length: Number of tokens before the first reply.
        reward: Sum of the rewards; of the last trial if there were several, as are score, success and end.
        end: Why it ended: the environment's `info["end"]`, `"context"`, or `"error"`.
        error: For `end="error"`, what went wrong. Such a trajectory takes part in no statistics.
        trials: Attempts at the task.
    """

    episode: Episode
    goal: str = ""
    subset: str = ""
    instruction: str = ""
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    prompt_length: int = 0
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    end: str = ""
    error: str = ""
    trials: int = 1

    @property
    def group(self) -> tuple[str, int]:
        """Key that the members of a group share."""
        return self.episode.task, self.episode.seed

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.mask)

    @property
    def context(self) -> list[int]:
        """The tokens that the next reply follows: the last sequence."""
        return self.tokens[self.starts[-1] :]

    def segments(self) -> list[Segment]:
        """The sequences that are trained on: those in which something was sampled."""
        return [
            Segment(start, self.mask.index(1, start, stop), stop)
            for start, stop in pairwise([*self.starts, len(self.tokens)])
            if 1 in self.mask[start:stop]
        ]

    def begin_segment(self) -> None:
        """Begin a further sequence; what is appended next does not follow what is there."""
        if self.tokens:
            self.starts.append(len(self.tokens))

    def append_given(self, tokens: list[int]) -> None:
        """Append tokens that the policy did not sample."""
        self.tokens += tokens
        self.mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.allowed += [()] * len(tokens)

    def append_sampled(
        self, tokens: list[int], logprobs: list[float], allowed: list[tuple[int, ...]] | None = None
    ) -> tuple[int, int]:
        """Append sampled tokens and return their span; `allowed` says among which each was chosen, if not all."""
        start = len(self.tokens)
        self.tokens += tokens
        self.mask += [1] * len(tokens)
        self.logprobs += logprobs
        self.allowed += allowed or [()] * len(tokens)
        return start, len(self.tokens)

    def to_row(self, **context: Any) -> dict[str, Any]:
        """Return the readable part (no tokens) as a JSON object."""
        return {
            **context,
            "task": self.episode.task,
            "goal": self.goal,
            "subset": self.subset,
            "seed": self.episode.seed,
            "sample": self.episode.sample,
            "horizon": self.episode.horizon,
            "trials": self.trials,
            "reward": self.reward,
            "score": self.score,
            "success": self.success,
            "end": self.end,
            "error": self.error,
            "instruction": self.instruction,
            "prompt": self.prompt,
            "turns": [asdict(turn) for turn in self.turns],
        }

    def to_data(self) -> dict[str, Any]:
        """Return everything that is needed to compute its loss again."""
        return {
            **self.to_row(),
            "tokens": self.tokens,
            "mask": self.mask,
            "logprobs": self.logprobs,
            "allowed": self.allowed,
            "starts": self.starts,
            "prompt_length": self.prompt_length,
        }
