"""Pairs of episodes of which one is preferred: from a file of pairs, or made of a run's episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from agentgym_train.chat import Chat
from agentgym_train.config import ConfigError
from agentgym_train.offline import Example
from agentgym_train.training_data import (
    Record,
    episode_trajectory,
    is_episode,
    messages_of,
    read_records,
    refused_episode,
    write_down,
)
from agentgym_train.trajectory import Trajectory

_SAME = "no difference between the two"


def read_pairs(path: str, chat: Chat, held_out: Collection[str], left_out: Counter[str]) -> list[Example]:
    """Read pairs; the first trajectory of each is preferred.

    Args:
        path: A file of pairs, or of a run's episodes, or of both.
        chat: Renders them.
        held_out: Tasks whose episodes are not trained on.
        left_out: Counts what is left out by reason.

    Raises:
        ConfigError: If the file cannot be read, or an entry is neither a pair nor an episode.
    """
    if not path:
        raise ConfigError("pairs.path='' is not accepted; give a file of pairs, or a run's trajectories.jsonl.")
    pairs: list[tuple[Trajectory, Trajectory]] = []
    episodes: dict[tuple[str, int], list[Trajectory]] = {}
    for record in read_records(path, "pairs.path"):
        if not is_episode(record.data):
            pairs.append(_pair(record, chat))
        elif reason := refused_episode(record, held_out):
            left_out[reason] += 1
        else:
            trajectory = episode_trajectory(record, chat)
            episodes.setdefault(trajectory.group, []).append(trajectory)
    for group in episodes.values():
        pairs += pair_up(group)
    examples = [Example(pair) for pair in pairs if pair[0].tokens != pair[1].tokens]
    if same := len(pairs) - len(examples):
        left_out[_SAME] += same
    if alone := sum(len(group) for group in episodes.values()) - 2 * sum(len(pair_up(g)) for g in episodes.values()):
        left_out["episodes without one of another score beside them"] += alone
    return examples


def pair_up(group: list[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Pair the best episode of a task with the worst, the second best with the second worst, while scores differ."""
    ranked = sorted(group, key=lambda trajectory: -trajectory.score)  # stable: equal ones keep their order
    pairs = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
    return [(better, worse) for better, worse in pairs if better.score > worse.score]


def _pair(record: Record, chat: Chat) -> tuple[Trajectory, Trajectory]:
    where, data = record
    if not {"chosen", "rejected"} <= data.keys():
        raise ConfigError(
            f"{where} has {', '.join(data) or 'no key'}; accepted are chosen and rejected (with prompt, if it stands "
            "apart), and episodes of a run's trajectories.jsonl."
        )
    chosen, rejected = (_side(record, side, chat) for side in ("chosen", "rejected"))
    if chosen.tokens[: chosen.prompt_length] != rejected.tokens[: rejected.prompt_length]:
        raise ConfigError(f"{where}: chosen and rejected begin with different prompts, so they cannot be compared.")
    return chosen, rejected


def _side(record: Record, side: str, chat: Chat) -> Trajectory:
    where, data = f"{record.where}, {side}", record.data
    if isinstance(data[side], dict):  # itself a conversation or an episode
        return write_down(messages_of(Record(where, data[side])), chat, where)
    before = messages_of(Record(f"{record.where}, prompt", data), "prompt") if "prompt" in data else []
    return write_down([*before, *messages_of(Record(where, data), side)], chat, where)
