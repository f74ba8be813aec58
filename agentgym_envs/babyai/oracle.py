"""The oracle: the next text action of an agent that solves the task knowing only what it has seen.

Each call decides anew from the mission's open part, what is seen and what is carried; nothing is remembered
from call to call. What keeps it from going round in circles is an order of work: the ways that an object will
be carried along are cleared and unlocked with empty hands first, and only then is the object picked up.

The search goes over cells for ways that may lead through doors and past objects in the way (`_way`), and
over poses for the fewest turns (`_fewest_turns`), in which a whole walk to an object counts as one turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from agentgym_envs.babyai import grammar, planner
from agentgym_envs.babyai.grammar import Command
from agentgym_envs.babyai.simulator import verifier
from agentgym_envs.babyai.view import OWN, Knowledge, visible_places
from agentgym_envs.verbs import Verb

# Costs of a way over cells, in steps. A way without objects in the way and locked doors is always cheaper, so
# that whether there is one does not depend on the cell in which it begins.
_CLOSED_DOOR = 2
_OBJECT_IN_THE_WAY = 1_000
_LOCKED_DOOR = 5_000
# Turns of looking around that are worth trying before a closed door is opened.
_TURNS_BEFORE_A_DOOR = 3
_MAX_DEPTH = 20

_Test = Callable[[int, int], bool]


class _Stuck(Exception):
    """There is no way that the oracle knows."""


class _Way(NamedTuple):
    """A cheapest way over seen cells.

    Attributes:
        start: The cell that it begins in.
        goals: The cells that it could lead to, with what each costs.
        lifted: Cell of an object that was thought away.
        goal: The cell that it leads to (the last step may not enter it).
        doors: Closed doors on it that are not locked, first to last.
        hard: Cells with objects in the way or locked doors on it, first to last.
    """

    start: int
    goals: dict[int, int]
    lifted: int
    goal: int
    doors: list[int]
    hard: list[int]


def next_action(known: Knowledge) -> str | None:
    """Return the next action of a solution, or None where the oracle sees none."""
    try:
        oracle = _Oracle(known)
        action = oracle.action()
        return action if planner.is_possible(known, grammar.parse(action), oracle.reach) else None
    except _Stuck:
        return None


def _open_parts(mission: Any) -> Iterator[verifier.ActionInstr]:
    """Yield the parts of a mission that can be done now, in the order of the text."""
    if isinstance(mission, verifier.AndInstr):
        if not _is_done(mission.a_done):
            yield from _open_parts(mission.instr_a)
        if not _is_done(mission.b_done):
            yield from _open_parts(mission.instr_b)
    elif isinstance(mission, verifier.BeforeInstr):
        yield from _open_parts(mission.instr_b if _is_done(mission.a_done) else mission.instr_a)
    elif isinstance(mission, verifier.AfterInstr):
        yield from _open_parts(mission.instr_a if _is_done(mission.b_done) else mission.instr_b)
    else:
        yield mission


def _is_done(state: object) -> bool:
    """Whether a part's state, which minigrid keeps as False or a word, says that it is done."""
    return state == "success"


def _all_parts(mission: Any) -> Iterator[verifier.ActionInstr]:
    if isinstance(mission, verifier.ActionInstr):
        yield mission
    else:
        yield from _all_parts(mission.instr_a)
        yield from _all_parts(mission.instr_b)


class _Oracle:
    """One decision."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.carried = known.level.carrying
        self.free = planner.free_cells(known)
        self.reach = planner.flood(known, self.free, known.cell)
        self.place = {thing: cell for cell, thing in known.things.items()}
        parts = list(_all_parts(known.level.instrs))
        # In strict parts the wrong door or object is the end.
        self.may_open = not any(isinstance(part, verifier.OpenInstr) and part.strict for part in parts)
        self.may_lift = not any(getattr(part, "strict", False) for part in parts)
        self.wanted = {
            thing
            for part in parts
            for name in ("desc", "desc_move", "desc_fixed")
            if (description := getattr(part, name, None)) is not None
            for thing in description.obj_set
        }
        self.keep_free: set[int] = set()  # cells that nothing should be put down in
        self.kept: list[_Way] = []  # ways that nothing should be put down on
        self.given_up: set[int] = set()  # locked doors whose key cannot be had
        self.depth = 0

    def action(self) -> str:
        part = next(_open_parts(self.known.level.instrs))
        if isinstance(part, verifier.GoToInstr):
            return self._go_to(part)
        if isinstance(part, verifier.OpenInstr):
            return self._open(part)
        if isinstance(part, verifier.PickupInstr):
            return self._pick_up(part)
        assert isinstance(part, verifier.PutNextInstr)
        return self._put_next(part)

    # ---- the kinds of mission -----------------------------------------------------------------------

    def _go_to(self, part: verifier.GoToInstr) -> str:
        if self.carried in part.desc.obj_set:
            return self._put_down()  # it is then in the next cell ahead
        way = self._way(self.known.cell, dict.fromkeys(self._seen_places(part.desc), 0))
        if way is None:
            return self._explore()
        return self._follow(way) or self._face(way.goal)

    def _open(self, part: verifier.OpenInstr) -> str:
        doors = [door for door in part.desc.obj_set if door in self.place]
        prices = {self.place[door]: 2 if door.is_open else self._price(door, wanted=True) for door in doors}
        way = self._way(self.known.cell, {cell: price for cell, price in prices.items() if price is not None})
        if way is None:
            return self._explore()
        if self.known.cells[way.goal].is_locked:
            return self._unlock(way.goal)
        return self._follow(way) or self._toggle(way.goal)

    def _pick_up(self, part: verifier.PickupInstr) -> str:
        if self.carried in part.desc.obj_set:
            return self._put_down()  # to pick it up again
        way = self._way(self.known.cell, {self.place[thing]: 0 for thing in part.desc.obj_set if thing in self.place})
        return self._explore() if way is None else self._lift(way)

    def _put_next(self, part: verifier.PutNextInstr) -> str:
        known, moved = self.known, part.desc_move.obj_set
        if self.carried in part.desc_fixed.obj_set:
            return self._put_down()
        beside = {cell + step for cell in self._seen_places(part.desc_fixed) for step in known.steps}
        spots = {cell for cell in beside if known.seen[cell] and known.cells[cell] is None}
        self.keep_free.update(spots)
        if self.carried in moved:
            way = self._way(known.cell, dict.fromkeys(spots, 0))
            if way is None or way.hard:
                self.kept += [way] if way else []
                return self._put_down()
            goals = {pose for spot in spots for pose in planner.facing(known, spot)}
            return self._follow(way) or self._turn_to(goals.__contains__) or grammar.drop()
        first = self._way(known.cell, {self.place[thing]: 0 for thing in moved if thing in self.place})
        if first is None or not beside:
            return self._explore()
        if not spots:
            way = self._way(known.cell, {cell: 0 for cell in beside if self._is_movable(cell)})
            return self._explore() if way is None else self._lift(way)
        second = self._way(first.goal, dict.fromkeys(spots, 0), lifted=first.goal)
        if second is None:
            return self._explore()
        return self._clear(first) or self._clear(second) or self._lift(first)

    # ---- ways over cells ----------------------------------------------------------------------------

    def _way(self, start: int, goals: dict[int, int], lifted: int = -1, filled: int = -1) -> _Way | None:
        """Find the cheapest way to a goal, through closed doors and past objects if need be.

        Args:
            start: Cell to start from.
            goals: Cells to come next to or into, with what each costs; they may be unseen.
            lifted: Cell of an object to think away.
            filled: Cell to think an object into.
        """
        known = self.known
        before: dict[int, int] = {}
        best = {start: 0}
        heap = [(0, start)]
        while heap:
            cost, cell = heapq.heappop(heap)
            if cell in goals:
                return self._described(_Way(start, goals, lifted, cell, [], []), before, filled)
            if cost > best[cell]:
                continue
            for step in known.steps:
                after = cell + step
                if after in goals:
                    price: int | None = goals[after]
                elif after == filled:
                    price = _OBJECT_IN_THE_WAY
                elif known.seen[after]:
                    price = 0 if after == lifted else self._price(known.cells[after])
                else:
                    price = None
                if price is not None and cost + 1 + price < best.get(after, cost + 2 + price):
                    best[after] = cost + 1 + price
                    before[after] = cell
                    heapq.heappush(heap, (best[after], after))
        return None

    def _described(self, way: _Way, before: dict[int, int], filled: int) -> _Way:
        """Fill in what is on a way; `before` leads from its goal back to its start."""
        cell = way.goal
        while cell != way.start:
            cell = before[cell]
            if cell == way.start or (self.free[cell] and cell != filled):
                continue
            thing = self.known.cells[cell]
            soft = thing is not None and thing.type == "door" and not thing.is_locked
            (way.doors if soft else way.hard).insert(0, cell)
        return way

    def _price(self, thing: Any, wanted: bool = False) -> int | None:
        """Return what a cell's content adds to a way, None if no way leads through it."""
        if planner.passable(thing):
            return 0
        if thing.type == "wall":
            return None
        if thing.type != "door":
            return _OBJECT_IN_THE_WAY if self.may_lift else None
        if not self.may_open and not wanted:
            return None
        if not thing.is_locked or self._fits(self.carried, thing):
            return _CLOSED_DOOR
        has_key = any(self._fits(key, thing) for key in self.place)
        return _LOCKED_DOOR if has_key and self.place[thing] not in self.given_up else None

    def _fits(self, key: Any, door: Any) -> bool:
        return key is not None and key.type == "key" and bool(key.color == door.color)

    def _is_movable(self, cell: int) -> bool:
        thing = self.known.things.get(cell)
        return thing is not None and thing.type != "door"

    def _seen_places(self, description: Any) -> list[int]:
        """Return the cells of a description's objects, as the judge of the mission has them, if seen."""
        cells = [int(y) * self.known.width + int(x) for x, y in description.obj_poss]
        return [cell for cell in cells if self.known.seen[cell]]

    # ---- what a way takes ---------------------------------------------------------------------------

    def _clear(self, way: _Way) -> str | None:
        """Deal with the first object in the way or locked door; None if there is none."""
        self.kept.append(way)
        if not way.hard:
            return None
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Stuck
        cell = way.hard[0]
        if not self._is_movable(cell):
            return self._unlock(cell)
        return self._lift(self._way_here(cell))

    def _follow(self, way: _Way) -> str | None:
        """Clear a way and open the doors on it; None if it can be walked."""
        return self._clear(way) or (self._toggle(way.doors[0]) if way.doors else None)

    def _lift(self, way: _Way) -> str:
        """Pick up the object at the end of a way, with everything that comes before."""
        if (first := self._clear(way)) is not None:
            return first
        if self.carried is not None:
            return self._put_down()
        return self._follow(way) or self._named(grammar.pick_up_object, way.goal)

    def _unlock(self, door: int) -> str:
        """Open a locked door, with the key that has to be fetched first."""
        known = self.known
        if self._fits(self.carried, known.cells[door]):
            way = self._way_here(door)
            self.kept.append(way)
            return self._put_down() if way.hard else self._follow(way) or self._toggle(door)
        keys = {cell: 0 for key, cell in self.place.items() if self._fits(key, known.cells[door])}
        first = self._way(known.cell, keys)
        second = None if first is None else self._way(first.goal, {door: 0}, lifted=first.goal)
        if first is None or second is None:
            self.given_up.add(door)
            return self._explore()
        return self._clear(first) or self._clear(second) or self._lift(first)

    def _way_here(self, cell: int) -> _Way:
        way = self._way(self.known.cell, {cell: 0})
        if way is None:
            raise _Stuck
        return way

    def _toggle(self, cell: int) -> str:
        """Open a door or box, or close a door, to which one can walk; closed doors are gone through at once."""
        thing = self.known.cells[cell]
        if thing.type == "door" and not thing.is_open and self._is_possible(grammar.toggle_and_go_through, cell):
            return self._named(grammar.toggle_and_go_through, cell)
        return grammar.toggle() if cell == self.known.front else self._named(grammar.go_to, cell)

    def _face(self, cell: int) -> str:
        if cell == self.known.front:
            return grammar.turn_left()  # to come back
        if cell in self.known.things:
            return self._named(grammar.go_to, cell)
        return self._turn_to(planner.facing(self.known, cell).__contains__) or grammar.turn_left()

    def _named(self, verb: Verb, cell: int) -> str:
        return grammar.with_object(verb, self.known.names[self.known.things[cell]])

    def _is_possible(self, verb: Verb, cell: int) -> bool:
        command = Command(verb, self.known.names[self.known.things[cell]])
        return planner.is_possible(self.known, command, self.reach)

    def _put_down(self) -> str:
        """Drop what is carried where it is in nobody's way, or else in some free cell."""
        known = self.known
        doors = [cell for cell, thing in known.things.items() if thing.type == "door"]
        before_doors = {door + step for door in doors for step in known.steps}
        touched = {cell for cell in known.things if not self.reach.isdisjoint(cell + step for step in known.steps)}

        def is_free(cell: int, _: int) -> bool:
            return bool(known.seen[cell]) and known.cells[cell] is None

        def is_of_no_use(cell: int, stand: int) -> bool:
            return (
                is_free(cell, stand)
                and cell not in self.keep_free
                and not any(self._is_harder(way, cell, stand) for way in self.kept)
            )

        def blocks_nothing(cell: int, stand: int) -> bool:
            if cell not in self.reach or not is_free(cell, stand):
                return False
            self.free[cell] = 0
            left = planner.flood(known, self.free, stand)
            self.free[cell] = 1
            if len(left) < len(self.reach) - 1:
                return False
            if any(left.isdisjoint(other + step for step in known.steps) for other in touched):
                return False
            return is_of_no_use(cell, stand)

        def is_best(cell: int, stand: int) -> bool:
            return cell not in before_doors and blocks_nothing(cell, stand)

        for test in (is_best, blocks_nothing, is_of_no_use, is_free):
            verdict: dict[int, bool] = {}

            def is_good(pose: int, test: _Test = test, verdict: dict[int, bool] = verdict) -> bool:
                cell = (pose >> 2) + known.steps[pose & 3]
                if cell not in verdict:
                    verdict[cell] = test(cell, pose >> 2)
                return verdict[cell]

            if (turns := self._turns_to(is_good)) is not None:
                return turns[1] or grammar.drop()
        raise _Stuck

    def _is_harder(self, way: _Way, cell: int, stand: int) -> bool:
        """Whether more is in the way once something has been put into a cell by an agent that stands in another."""
        start = stand if way.start == self.known.cell else way.start
        after = self._way(start, way.goals, way.lifted, filled=cell)
        return after is None or len(after.hard) > len(way.hard)

    # ---- looking around -----------------------------------------------------------------------------

    def _explore(self) -> str:
        """See something new."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Stuck
        known = self.known
        open_cells = [cell for cell, seen in enumerate(known.seen) if seen and self._shows_more(cell)]
        unseen = {cell + step for cell in open_cells for step in known.steps if not known.seen[cell + step]}
        looking = self._turns_to(lambda pose: self._reveals(pose, unseen)) if unseen else None
        if looking is not None and looking[0] <= _TURNS_BEFORE_A_DOOR:
            return looking[1]
        doors = {cell for cell, thing in known.things.items() if thing.type == "door" and not thing.is_open}
        prices = {cell: self._price(known.cells[cell]) for cell in doors}
        way = self._way(known.cell, {cell: price for cell, price in prices.items() if price is not None})
        if way is not None and not way.hard and not self._is_locked(way.goal):
            return self._follow(way) or self._toggle(way.goal)
        if looking is not None:
            return looking[1]
        goals = {cell: price for cell, price in prices.items() if price is not None} | dict.fromkeys(unseen, 0)
        way = self._way(known.cell, goals)
        if way is not None:
            if way.goal in doors and self._is_locked(way.goal):
                return self._unlock(way.goal)
            return self._follow(way) or self._toggle(way.goal)
        if self.carried is not None and self.carried.type == "box" and self.carried not in self.wanted:
            return self._put_down()  # to open it: what is missing may be in it
        boxes = {cell: 0 for cell, thing in known.things.items() if thing.type == "box" and thing not in self.wanted}
        way = self._way(known.cell, boxes)
        if way is None:
            raise _Stuck
        return self._follow(way) or self._toggle(way.goal)

    def _is_locked(self, cell: int) -> bool:
        return bool(self.known.cells[cell].is_locked)

    def _shows_more(self, cell: int) -> bool:
        """Whether what is beside a seen cell can be of interest: beside walls and closed doors it is not."""
        thing = self.known.cells[cell]
        return thing is None or (thing.type != "wall" and (thing.type != "door" or thing.is_open))

    def _reveals(self, pose: int, unseen: set[int]) -> bool:
        """Whether one of some unseen cells will be seen from a pose, by minigrid's rule of what is visible.

        What is behind an unseen cell is not counted, so that the answer is certain.
        """
        window = self.known.window(pose)
        if unseen.isdisjoint(window):
            return False
        return any(window[k] in unseen for k in visible_places(lambda k: k == OWN or self._lets_through(window[k])))

    def _lets_through(self, cell: int) -> bool:
        return bool(self.known.seen[cell]) and self._shows_more(cell)

    def _turn_to(self, good: Callable[[int], bool]) -> str | None:
        """Return the first of the fewest turns to a good pose, None if it is the current one."""
        turns = self._turns_to(good)
        if turns is None:
            raise _Stuck
        return turns[1] or None

    def _turns_to(self, good: Callable[[int], bool]) -> tuple[int, str] | None:
        """Find the fewest turns to a pose: primitive actions, or a planned one and then primitive ones.

        Returns:
            Their number and the first of them (empty if the current pose is good); None if there are none.
        """
        known = self.known
        first: dict[int, str] = {known.pose: ""}
        queue = [(known.pose, 0)]
        for pose, turns in queue:  # grows on the way
            if good(pose):
                return turns, first[pose]
            following = [
                ((pose & ~3) | ((pose - 1) & 3), grammar.turn_left()),
                ((pose & ~3) | ((pose + 1) & 3), grammar.turn_right()),
            ]
            ahead = (pose >> 2) + known.steps[pose & 3]
            if self.free[ahead]:
                following.insert(0, (4 * ahead + (pose & 3), grammar.move_forward()))
            if turns == 0:
                following += self._after_planned_actions()
            for after, action in following:
                if after not in first:
                    first[after] = first[pose] or action
                    queue.append((after, turns + 1))
        return None

    def _after_planned_actions(self) -> list[tuple[int, str]]:
        """Return the poses that planned walks end in, with the actions."""
        known = self.known
        found: dict[int, int] = {}  # cell of a thing -> the pose in which a walk to it ends
        for pose in planner.poses(known, self.free, {}):
            cell = (pose >> 2) + known.steps[pose & 3]
            if cell in known.things:
                found.setdefault(cell, pose)
        walks = [(pose, self._named(grammar.go_to, cell)) for cell, pose in found.items() if cell != known.front]
        for cell, pose in found.items():
            behind = cell + known.steps[pose & 3]
            if self.free[cell] and self.free[behind] and cell != known.cell:
                walks.append((4 * behind + (pose & 3), self._named(grammar.go_through, cell)))
        return walks
