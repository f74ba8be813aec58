"""The way to the goal: the simulator's own path, checked by playing it."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_envs.sciworld.grammar import normal
from agentgym_envs.sciworld.host import Host
from agentgym_envs.sciworld.simulator import Simulator, Variation

# They take no time and change nothing, so a plan that was checked before them still holds.
FREE = ("look around", "look", "inventory", "task")

# Beyond that many actions, an agent that has left the path is not helped: they would all be played again.
MOST_REPLAYED = 100

_solutions: dict[Variation, tuple[str, ...] | None] = {}


def solution(host: Host, variation: Variation) -> tuple[str, ...] | None:
    """Return the actions of the simulator's own path up to the success, or None where it does not succeed.

    Actions of it that the simulator itself does not understand are left out. The result is kept.

    Raises:
        Fault: If the Java process died.
    """
    if variation not in _solutions:
        with host.scratch() as simulator:
            path = [normal(action) for action in simulator.gold_path(variation)]
            simulator.begin(variation)
            _solutions[variation] = _played_to_success(simulator, path)
    return _solutions[variation]


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
    path = solution(host, variation)
    if path is None:
        return []
    done, kept_to_it = 0, True
    for action in played:
        if done < len(path) and action == path[done]:
            done += 1
        elif action not in FREE:
            kept_to_it = False
    rest = path[done:]
    if kept_to_it:
        return list(rest)
    if len(played) > MOST_REPLAYED:
        return []
    with host.scratch() as simulator:
        simulator.begin(variation)
        for action in played:
            simulator.act(action)
        return list(_played_to_success(simulator, rest) or ())


def _played_to_success(simulator: Simulator, actions: Sequence[str]) -> tuple[str, ...] | None:
    """Play until the task is done, and return the actions that were understood; None if it is not."""
    done = []
    for action in actions:
        reply = simulator.act(action)
        if reply.understood:
            done.append(action)
        if reply.solved:
            return tuple(done)
        if reply.failed:
            return None
    return None
