"""What a rollout leaves behind: sampled tokens, their mask and log-probabilities, and what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentgym_train.chat import Chat


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
    """One reply of the policy and the environment's answer.

    Attributes:
        start: Index in `Trajectory.tokens` of the reply's first sampled token.
        stop: Index after its last one.
        reply: The reply as text.
        action: The action found in the reply; empty if there was none.
        observation: What the environment answered.
        reward: Reward of this turn.
        valid: Whether the environment accepted the action.
        finish: Why sampling stopped: `"stop"` or `"length"`.
    """

    start: int
    stop: int
    reply: str
    action: str
    observation: str
    reward: float
    valid: bool
    finish: Literal["stop", "length"]


@dataclass(slots=True)
class Trajectory:
    """One rolled-out episode. The four token lists have one entry per token, in the order of the context.

    Attributes:
        episode: What was asked for.
        tokens: Token ids: prompt, reply, observation, reply, ...
        mask: 1 on tokens that the policy sampled (end-of-turn included), 0 on prompt and observations.
        logprobs: Log-probability that the engine gave each sampled token at the sampling temperature; 0.0
            where the mask is 0, never used there.
        prompt_length: Number of tokens before the first reply.
        end: Why it ended: the environment's `info["end"]`, `"context"`, or `"error"`.
        error: For `end="error"`, what went wrong. Such a trajectory takes part in no statistics.
    """

    episode: Episode
    goal: str = ""
    subset: str = ""
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_length: int = 0
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    end: str = ""
    error: str = ""

    @property
    def group(self) -> tuple[str, int]:
        """Key that the members of a group share."""
        return self.episode.task, self.episode.seed

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.mask)

    def append_given(self, tokens: list[int]) -> None:
        """Append tokens that the policy did not sample."""
        self.tokens += tokens
        self.mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def append_sampled(self, tokens: list[int], logprobs: list[float]) -> tuple[int, int]:
        """Append sampled tokens and return their span."""
        start = len(self.tokens)
        self.tokens += tokens
        self.mask += [1] * len(tokens)
        self.logprobs += logprobs
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
            "reward": self.reward,
            "score": self.score,
            "success": self.success,
            "end": self.end,
            "error": self.error,
            "prompt": self.prompt,
            "turns": [asdict(turn) for turn in self.turns],
        }


def open_trajectory(
    trajectory: Trajectory, chat: Chat, observation: str, info: Mapping[str, Any], reply_instruction: str
) -> None:
    """Write the beginning of an episode into a trajectory: everything up to the first reply.

    Args:
        trajectory: A new trajectory.
        chat: Renders the prompt.
        observation: The reset's observation.
        info: The reset's info.
        reply_instruction: Added to the environment's instruction; may be empty.
    """
    instruction = "\n\n".join(filter(None, [str(info["instruction"]), reply_instruction]))
    trajectory.goal, trajectory.subset = str(info["goal"]), str(info["subset"])
    trajectory.prompt = f"{instruction}\n\n{observation}"
    trajectory.append_given(chat.prompt(instruction, observation))
    trajectory.prompt_length = len(trajectory.tokens)
