"""The way to the goal: the simulator's own path, checked by playing it.

Some of those paths measure wrongly and answer with the wrong box; then the other boxes are tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym_envs.sciworld.grammar import normal
from agentgym_envs.sciworld.host import Host
from agentgym_envs.sciworld.simulator import Simulator, Variation

# They take no time and change nothing, so a plan that was checked before them still holds.
FREE = ("look around", "look", "inventory", "task")

# An agent that went its own way may have done some steps of the path in other words. Where it cannot take that many of
# them, one after the other, it is elsewhere, and the rest is not tried.
MOST_SKIPPED = 3

# Beyond that many actions, an agent that has left the path is not helped: they would all be played again.
MOST_REPLAYED = 100

# A cache: the simulator takes longer for a path than for playing it. Over all variations it would be 20 MB.
_KEPT = 100
_UNKNOWN: Any = object()

_ANSWER = re.compile(r"focus on the (\w+ box)")
_solutions: dict[Variation, tuple[str, ...] | None] = {}


def solution(host: Host, variation: Variation) -> tuple[str, ...] | None:
    """Return actions that lead from the start of a variation to the success, or None where none are known.

    They are those of the simulator's own path, perhaps with another answer. Actions of it that the simulator
    itself does not understand are left out. The last results are kept.

    Raises:
        Fault: If the Java process died.
    """
    found: tuple[str, ...] | None = _solutions.get(variation, _UNKNOWN)
    if found is not _UNKNOWN:
        return found
    with host.scratch() as simulator:
        found = solve(simulator, variation, simulator.gold_path(variation))
    if len(_solutions) >= _KEPT:
        _solutions.pop(list(_solutions)[0], None)  # noqa: RUF015 (atomic, unlike a step of an iterator)
    _solutions[variation] = found
    return found


def solve(simulator: Simulator, variation: Variation, path: Sequence[str]) -> tuple[str, ...] | None:
    """Play a path from the start, and if it fails the same with the other answers that the task names.

    Returns:
        The actions up to the success that were understood; None if there is no success.

    Raises:
        Fault: If the Java process died.
    """
    description, _ = simulator.begin(variation)
    actions = [sys.intern(normal(action)) for action in path]  # paths have most of them in common
    found = _played_to_success(simulator, actions)
    if found is None:
        for other in _other_answers(actions, description):
            simulator.begin(variation)
            if (found := _played_to_success(simulator, other)) is not None:
                break
    return found


def _other_answers(actions: Sequence[str], description: str) -> Iterator[list[str]]:
    answers = list(dict.fromkeys(f"focus on {box}" for box in _ANSWER.findall(description.lower())))
    given = [at for at, action in enumerate(actions) if action in answers]
    for answer in answers:
        if given and answer != actions[given[-1]]:
            yield [*actions[: given[-1]], answer]


def plan(host: Host, variation: Variation, played: Sequence[str]) -> list[str]:
    """Return actions that lead from the current state to the success; empty where none are known.

    An agent that has kept to the simulator's path, apart from actions that change nothing, gets the rest of
    it. For any other one, what was played is played again in a world beside, and the rest of the path after
    it: if that succeeds, it is the plan. That is not tried after more than `MOST_REPLAYED` actions.

    Args:
        host: Where there is a simulator to try things in.
        variation: The task.
        played: The actions since the start that were understood.

    Raises:
        Fault: If the Java process died.
    """
    rest, kept_to_it = rest_of_path(host, variation, played)
    if kept_to_it or not rest:
        return rest
    if len(played) > MOST_REPLAYED:
        return []
    with host.scratch() as simulator:
        simulator.begin(variation)
        for action in played:
            simulator.act(action)
        return list(_played_to_success(simulator, rest, MOST_SKIPPED) or ())


def rest_of_path(host: Host, variation: Variation, played: Sequence[str]) -> tuple[list[str], bool]:
    """Return what is left of the solution of a variation, and whether all that was played is part of it or free.

    Where not, nobody knows whether the rest still leads to the success.

    Raises:
        Fault: If the Java process died.
    """
    path = solution(host, variation) or ()
    done, kept_to_it = 0, True
    for action in played:
        if done < len(path) and action == path[done]:
            done += 1
        elif action not in FREE:
            kept_to_it = False
    return list(path[done:]), kept_to_it


def _played_to_success(
    simulator: Simulator, actions: Sequence[str], most_skipped: int | None = None
) -> tuple[str, ...] | None:
    """Play until the task is done, and return the actions that were understood; None if it is not.

    Args:
        simulator: In the state where the actions begin.
        actions: What to play.
        most_skipped: Give up once so many in a row are not understood.
    """
    done = []
    skipped = 0
    for action in actions:
        reply = simulator.act(action)
        skipped = 0 if reply.understood else skipped + 1
        if skipped == most_skipped:
            return None
        if reply.understood:
            done.append(action)
        if reply.solved:
            return tuple(done)
        if reply.failed:
            return None
    return None
