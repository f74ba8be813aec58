"""Actions: which are possible now, why others are not, and the steps of planned ones.

A planned action is a shortest walk over free cells that the agent has seen, and what is done at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from agentgym_envs.babyai import grammar
from agentgym_envs.babyai.grammar import Command
from agentgym_envs.babyai.view import Knowledge
from agentgym_envs.verbs import Verb, quoted

# minigrid's numbers of its actions.
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)
_STEP: dict[Verb, int] = dict(zip(grammar.PRIMITIVES, range(6), strict=True))
# What a planned action does once the walk has ended.
_AT_THE_END: dict[Verb, list[int]] = {
    grammar.go_to: [],
    grammar.pick_up_object: [PICK_UP],
    grammar.go_through: [FORWARD, FORWARD],
    grammar.toggle_and_go_through: [TOGGLE, FORWARD, FORWARD],
}


class NotPossible(ValueError):
    """The action cannot be carried out now; the message says why."""


def passable(thing: Any) -> bool:
    """Whether the agent can walk into a cell with this content."""
    return thing is None or (thing.type == "door" and thing.is_open)


def free_cells(known: Knowledge) -> bytearray:
    """Return 1 for each seen cell that the agent can walk into."""
    free = bytearray(known.seen)
    for cell, thing in enumerate(known.cells):
        if thing is not None and free[cell] and not passable(thing):
            free[cell] = 0
    return free


def flood(known: Knowledge, free: bytearray, start: int) -> set[int]:
    """Return the cells that can be walked to from `start`, itself included."""
    found = {start}
    pending = [start]
    while pending:
        cell = pending.pop()
        for step in known.steps:
            after = cell + step
            if free[after] and after not in found:
                found.add(after)
                pending.append(after)
    return found


def poses(known: Knowledge, free: bytearray, before: dict[int, tuple[int, int]]) -> Iterator[int]:
    """Yield the agent's pose and then all that it can come to, by the number of steps, turns counted as steps.

    Args:
        known: What the agent knows.
        free: 1 for each cell that can be walked into.
        before: Filled on the way: pose -> the step to it and the pose before.
    """
    steps = known.steps
    queue = [known.pose]
    before[known.pose] = -1, -1
    for pose in queue:  # grows on the way
        yield pose
        direction = pose & 3
        ahead = (pose >> 2) + steps[direction]
        if free[ahead] and (after := 4 * ahead + direction) not in before:
            before[after] = FORWARD, pose
            queue.append(after)
        if (after := (pose & ~3) | ((direction - 1) & 3)) not in before:
            before[after] = LEFT, pose
            queue.append(after)
        if (after := (pose & ~3) | ((direction + 1) & 3)) not in before:
            before[after] = RIGHT, pose
            queue.append(after)


def walk(known: Knowledge, free: bytearray, goals: Collection[int]) -> list[int] | None:
    """Return minigrid's actions for a shortest walk to one of some poses, or None if there is none."""
    before: dict[int, tuple[int, int]] = {}
    for pose in poses(known, free, before):
        if pose in goals:
            found: list[int] = []
            while pose != known.pose:
                step, pose = before[pose]
                found.append(step)
            return found[::-1]
    return None


def facing(known: Knowledge, cell: int) -> set[int]:
    """Return the poses that have a cell ahead."""
    return {4 * (cell - step) + direction for direction, step in enumerate(known.steps)}


def plan(known: Knowledge, command: Command) -> list[int]:
    """Return the steps of an action, as minigrid's actions.

    Raises:
        NotPossible: If it cannot be carried out; the message says why.
    """
    goals = _goals(known, command)
    if command.verb in _STEP:
        return [_STEP[command.verb]]
    steps = walk(known, free_cells(known), goals)
    if steps is None:
        raise NotPossible(_why_no_way(known, command))
    return steps + _AT_THE_END[command.verb]


def available(known: Knowledge) -> list[str]:
    """Return the actions that are possible now."""
    reach = flood(known, free_cells(known), known.cell)
    candidates = [(verb(), Command(verb)) for verb in grammar.PRIMITIVES]
    for verb in grammar.PLANNED:
        candidates += [(grammar.with_object(verb, name), Command(verb, name)) for name in known.named]
    return [text for text, command in candidates if is_possible(known, command, reach)]


def is_possible(known: Knowledge, command: Command, reach: set[int]) -> bool:
    """Whether an action can be carried out now; `reach` is the `flood` from the agent's cell."""
    try:
        goals = _goals(known, command)
    except NotPossible:
        return False
    return command.verb in _STEP or any(pose >> 2 in reach for pose in goals)


def _goals(known: Knowledge, command: Command) -> set[int]:
    """Return the poses in which a planned action's walk may end; nothing for other actions.

    Raises:
        NotPossible: If the action cannot be carried out, wherever one can walk.
    """
    if command.verb in _STEP:
        _check_primitive(known, command.verb)
        return set()
    verb, name = command
    thing = known.named.get(name)
    if thing is None:
        seen = ", ".join(known.named) or "nothing yet"
        raise NotPossible(f"there is no {quoted(name)} that you have seen; you have seen {seen}")
    if thing is known.level.carrying:
        raise NotPossible(f"you carry {name}")
    place = known.place_of(thing)
    if place is None:
        raise NotPossible(f"{name} is gone")
    if verb is grammar.go_to and place == known.front:
        raise NotPossible(f"{name} is in the next cell ahead already")
    if verb is grammar.pick_up_object:
        _check_hand(known, thing)
    goals = facing(known, place)
    if verb in (grammar.go_through, grammar.toggle_and_go_through):
        _check_door(known, verb, thing)
        if place == known.cell:
            raise NotPossible(f"you stand in the doorway of {name}: turn and move forward to leave it")
        return {pose for pose in goals if not _is_blocked(known, place + known.steps[pose & 3])}
    return goals


def _is_blocked(known: Knowledge, cell: int) -> bool:
    """Whether something is known to be in a cell."""
    return bool(known.seen[cell]) and not passable(known.cells[cell])


def _why_no_way(known: Knowledge, command: Command) -> str:
    """Say why no walk leads to a goal of a planned action."""
    place = known.place_of(known.named[command.name])
    assert place is not None
    if command.verb in (grammar.go_through, grammar.toggle_and_go_through):
        reach = flood(known, free_cells(known), known.cell)
        for pose in sorted(facing(known, place)):
            behind = place + known.steps[pose & 3]
            if pose >> 2 in reach and _is_blocked(known, behind):
                return f"{known.what_is_in(behind)} is in the cell behind {command.name}"
    return f"no free way to {command.name} leads over the cells that you have seen"


def _check_primitive(known: Knowledge, verb: Verb) -> None:
    if verb in (grammar.turn_left, grammar.turn_right):
        return
    thing = known.cells[known.front]
    what = "nothing" if thing is None else known.what_is_in(known.front)
    carried = known.level.carrying
    if verb is grammar.move_forward:
        if not passable(thing):
            raise NotPossible(f"{what} is in the next cell ahead")
    elif verb is grammar.drop:
        if carried is None:
            raise NotPossible("you carry nothing")
        if thing is not None:
            raise NotPossible(f"{what} is in the next cell ahead, which must be free")
    elif thing is None:
        raise NotPossible("nothing is in the next cell ahead")
    elif verb is grammar.pick_up:
        _check_hand(known, thing)
    elif thing.type == "door":
        _check_key(known, thing)
    elif thing.type != "box":
        raise NotPossible(f"{what} is in the next cell ahead; only doors and boxes can be opened")


def _check_hand(known: Knowledge, thing: Any) -> None:
    if not thing.can_pickup():
        what = "a wall" if thing.type == "wall" else known.names[thing]
        raise NotPossible(f"{what} cannot be picked up")
    if known.level.carrying is not None:
        raise NotPossible(f"you carry {known.names[known.level.carrying]}: drop it first")


def _check_door(known: Knowledge, verb: Verb, thing: Any) -> None:
    name = known.names[thing]
    if thing.type != "door":
        raise NotPossible(f"{name} is no door")
    if verb is grammar.go_through and not thing.is_open:
        raise NotPossible(f"{known.title(thing)} has to be opened first")
    if verb is grammar.toggle_and_go_through:
        if thing.is_open:
            raise NotPossible(f"{name} is open already: toggling would close it")
        _check_key(known, thing)


def _check_key(known: Knowledge, door: Any) -> None:
    carried = known.level.carrying
    if door.is_locked and not (carried is not None and carried.type == "key" and carried.color == door.color):
        raise NotPossible(f"{known.names[door]} is locked, and you do not carry a {door.color} key")
