"""Packing trajectories into rows without padding, each shared prompt computed once.

A row is one long sequence made of trees. A tree is a prompt with the trajectories that continue it: every
trajectory sees the prompt and itself, and its positions go on from the prompt's end. So a group of G
trajectories costs one prompt instead of G, and no token is padding. The log-probabilities are those of
the trajectories computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_train.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One packed sequence of N tokens, of which n sampled tokens are trained on.

    Attributes:
        tokens: [N] token ids.
        positions: [N] position of each token in its own trajectory.
        allowed: [N, N] True where the row's token may attend to the column's, or None for one plain
            causal sequence.
        predictors: [n] index of the token whose output predicts each trained token.
        targets: [n] the trained tokens.
        owners: [n] index of the trajectory that each trained token belongs to.
        logprobs: [n] the engine's log-probabilities of the trained tokens.
        unpacked: Number of tokens that the same trajectories have one by one.
    """

    tokens: Tensor
    positions: Tensor
    allowed: Tensor | None
    predictors: Tensor
    targets: Tensor
    owners: Tensor
    logprobs: Tensor
    unpacked: int


def pack(trajectories: Sequence[Trajectory], token_budget: int, share_prompts: bool = True) -> list[Row]:
    """Pack trajectories into rows.

    Args:
        trajectories: Trajectories with at least one sampled token each.
        token_budget: Largest number of tokens in a row; a single longer trajectory gets a row of its own.
        share_prompts: False gives each trajectory a row of its own with a plain causal mask, for models
            that cannot take a mask of this shape.
    """
    if not share_prompts:
        return [_row([(trajectory.tokens[: trajectory.prompt_length], [(i, trajectory)])], plain=True)
                for i, trajectory in enumerate(trajectories)]  # fmt: skip
    families: dict[tuple[int, ...], list[tuple[int, Trajectory]]] = {}
    for index, trajectory in enumerate(trajectories):
        families.setdefault(tuple(trajectory.tokens[: trajectory.prompt_length]), []).append((index, trajectory))
    trees: list[_Tree] = []
    for prompt, members in families.items():
        chunk: list[tuple[int, Trajectory]] = []
        size = len(prompt)
        for index, trajectory in members:
            own = len(trajectory.tokens) - len(prompt)
            if chunk and size + own > token_budget:
                trees.append((list(prompt), chunk))
                chunk, size = [], len(prompt)
            chunk.append((index, trajectory))
            size += own
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
    return [_row(row, plain=False) for row in rows]


_Tree = tuple[list[int], list[tuple[int, Trajectory]]]


def _size(tree: _Tree) -> int:
    prompt, members = tree
    return len(prompt) + sum(len(trajectory.tokens) - len(prompt) for _, trajectory in members)


def _row(trees: Sequence[_Tree], plain: bool) -> Row:
    length = sum(map(_size, trees))
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    logprobs: list[float] = []
    unpacked = 0
    allowed = torch.zeros(length, length, dtype=torch.bool)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    for prompt, members in trees:
        prompt_start, prompt_stop = len(tokens), len(tokens) + len(prompt)
        tokens += prompt
        positions += range(len(prompt))
        allowed[prompt_start:prompt_stop, prompt_start:prompt_stop] = causal[: len(prompt), : len(prompt)]
        for index, trajectory in members:
            start, own = len(tokens), len(trajectory.tokens) - len(prompt)
            tokens += trajectory.tokens[len(prompt) :]
            positions += range(len(prompt), len(prompt) + own)
            allowed[start : start + own, prompt_start:prompt_stop] = True
            allowed[start : start + own, start : start + own] = causal[:own, :own]
            for k in range(len(prompt), len(trajectory.tokens)):
                if trajectory.mask[k]:
                    # Token k is predicted by token k - 1, which for the first reply is the prompt's last.
                    predictors.append(start + k - 1 - len(prompt) if k > len(prompt) else prompt_stop - 1)
                    targets.append(trajectory.tokens[k])
                    owners.append(index)
                    logprobs.append(trajectory.logprobs[k])
            unpacked += len(trajectory.tokens)
    return Row(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        allowed=None if plain else allowed,
        predictors=torch.tensor(predictors, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        owners=torch.tensor(owners, dtype=torch.long),
        logprobs=torch.tensor(logprobs),
        unpacked=unpacked,
    )
