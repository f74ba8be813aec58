"""Packing trajectories into rows without padding, each shared prompt computed once.

A row is one long sequence made of trees. A tree is a prompt with the sequences that continue it (those of a
group's trajectories, and further ones of the same trajectory if its context is cut): each sees the prompt and
itself, and its positions go on from the prompt's end. So a group of G trajectories costs one prompt instead of
G, and no token is padding. The log-probabilities are those of the sequences computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_train.packed_attention import Span
from agentgym_train.trajectory import Segment, Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One packed sequence of N tokens, of which n sampled tokens are trained on.

    Attributes:
        tokens: [N] token ids.
        positions: [N] position of each token in its own sequence.
        spans: What attends to what; None for one plain causal sequence.
        predictors: [n] index of the token whose output predicts each trained token.
        targets: [n] the trained tokens.
        owners: [n] index of the trajectory that each trained token belongs to.
        places: [n] number of each trained token among the sampled tokens of its trajectory, from 0.
        logprobs: [n] the engine's log-probabilities of the trained tokens.
        choices: [n, m] token ids among which each trained token was chosen, itself repeated to fill up; -1 where
            it was the whole vocabulary. None if it always was.
        unpacked: Number of tokens that the same sequences have one by one.
    """

    tokens: Tensor
    positions: Tensor
    spans: tuple[Span, ...] | None
    predictors: Tensor
    targets: Tensor
    owners: Tensor
    places: Tensor
    logprobs: Tensor
    choices: Tensor | None
    unpacked: int


def pack(trajectories: Sequence[Trajectory], token_budget: int, share_prompts: bool = True) -> list[Row]:
    """Pack trajectories into rows.

    Args:
        trajectories: Trajectories with at least one sampled token each.
        token_budget: Largest number of tokens in a row; a single longer sequence gets a row of its own.
        share_prompts: False gives each sequence a row of its own with a plain causal mask, for models
            that cannot take a mask of this shape.
    """
    sequences = [
        [_Member(owner, trajectory, segment) for segment in trajectory.segments()]
        for owner, trajectory in enumerate(trajectories)
    ]
    if not share_prompts:
        return [_row([([], [member])]) for own in sequences for member in own]
    families: dict[tuple[int, ...], list[_Member]] = {}
    for own in sequences:
        families.setdefault(_common_prompt(own), []).extend(own)
    trees: list[_Tree] = []
    for prompt, members in families.items():
        chunk: list[_Member] = []
        size = len(prompt)
        for member in members:
            length = member.segment.stop - member.segment.start - len(prompt)
            if chunk and size + length > token_budget:
                trees.append((list(prompt), chunk))
                chunk, size = [], len(prompt)
            chunk.append(member)
            size += length
        trees.append((list(prompt), chunk))
    rows: list[list[_Tree]] = []
    space: list[int] = []
    for tree in sorted(trees, key=_size, reverse=True):  # first fit, largest first
        fitting = [i for i, left in enumerate(space) if left >= _size(tree)]
        if fitting:
            rows[fitting[0]].append(tree)
            space[fitting[0]] -= _size(tree)
        else:
            rows.append([tree])
            space.append(token_budget - _size(tree))
    return [_row(row) for row in rows]


class _Member(NamedTuple):
    """A sequence, and the index of its trajectory."""

    owner: int
    trajectory: Trajectory
    segment: Segment


_Tree = tuple[list[int], list[_Member]]


def _common_prompt(own: Sequence[_Member]) -> tuple[int, ...]:
    """What all prompts of a trajectory begin with; the whole prompt where there is one only."""
    prompts = [trajectory.tokens[segment.start : segment.reply] for _, trajectory, segment in own]
    first, last = min(prompts), max(prompts)  # what these two begin with, all that stand between them do
    pairs = zip(first, last, strict=False)
    return tuple(first[: next((k for k, (one, other) in enumerate(pairs) if one != other), len(first))])


def _size(tree: _Tree) -> int:
    prompt, members = tree
    return len(prompt) + sum(segment.stop - segment.start - len(prompt) for _, _, segment in members)


def _row(trees: Sequence[_Tree]) -> Row:
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    places: list[int] = []
    logprobs: list[float] = []
    choices: list[tuple[int, ...]] = []
    spans: list[Span] = []
    unpacked = 0
    for prompt, members in trees:
        prompt_start, prompt_stop = len(tokens), len(tokens) + len(prompt)
        tokens += prompt
        positions += range(len(prompt))
        if len(members) > 1:
            spans.append(Span(prompt_start, prompt_stop))
        for owner, trajectory, segment in members:
            begin = segment.start + len(prompt)  # of what it has for itself
            start, own = len(tokens), segment.stop - begin
            tokens += trajectory.tokens[begin : segment.stop]
            positions += range(len(prompt), len(prompt) + own)
            if len(members) > 1:
                spans.append(Span(start, start + own, prompt_start, prompt_stop))
            else:
                spans.append(Span(prompt_start, start + own))
            place = sum(trajectory.mask[: segment.start])
            for k in range(begin, segment.stop):
                if trajectory.mask[k]:
                    # Token k is predicted by token k - 1, which for the first reply may be the prompt's last.
                    predictors.append(start + k - 1 - begin if k > begin else prompt_stop - 1)
                    targets.append(trajectory.tokens[k])
                    owners.append(owner)
                    places.append(place)
                    logprobs.append(trajectory.logprobs[k])
                    choices.append(trajectory.allowed[k])
                    place += 1
            unpacked += segment.stop - segment.start
    return Row(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        spans=tuple(spans) if len(spans) > 1 else None,
        predictors=torch.tensor(predictors, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        owners=torch.tensor(owners, dtype=torch.long),
        places=torch.tensor(places, dtype=torch.long),
        logprobs=torch.tensor(logprobs),
        choices=_choices(choices, targets),
        unpacked=unpacked,
    )


def _choices(choices: Sequence[tuple[int, ...]], targets: Sequence[int]) -> Tensor | None:
    width = max(map(len, choices), default=0)
    if not width:
        return None
    padded = [
        [*own, *[target] * (width - len(own))] if own else [-1] * width
        for own, target in zip(choices, targets, strict=True)
    ]
    return torch.tensor(padded)
