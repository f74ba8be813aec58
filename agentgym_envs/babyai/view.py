"""What the agent knows: the cells that it has seen, the names of what was in them, and both as text.

A cell is an index into minigrid's own list of cells (`y * width + x`); a pose is `4 * cell + direction`.
Only the agent changes the world, and only in the cell ahead, which it always sees. So what was seen once is
known for good: the content of a seen cell can be read from the grid at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

VIEW = 7  # minigrid's square view: the agent stands in the middle of its last row
_SIDE = VIEW // 2
_UNSEEN, _EMPTY, _WALL = 0, 1, 2  # minigrid's codes; those above are objects and doors
OWN = _SIDE * VIEW + VIEW - 1  # the agent's place in the flattened view
# (steps ahead, steps to the right) of each cell of the flattened view.
_OFFSETS = [(VIEW - 1 - k % VIEW, k // VIEW - _SIDE) for k in range(VIEW * VIEW)]
_PLACE = {offset: k for k, offset in enumerate(_OFFSETS)}
_NEAREST_FIRST = sorted(range(VIEW * VIEW), key=lambda k: (_OFFSETS[k][0] + abs(_OFFSETS[k][1]), _OFFSETS[k]))
_RAYS = {
    "Ahead": [_PLACE[ahead, 0] for ahead in range(1, VIEW)],
    "Left": [_PLACE[0, -side] for side in range(1, _SIDE + 1)],
    "Right": [_PLACE[0, side] for side in range(1, _SIDE + 1)],
}


@cache
def _geometry(width: int) -> tuple[tuple[int, int, int, int], list[list[int]]]:
    """Return, by direction, what a step adds to a cell and what each cell of the flattened view adds to it."""
    steps = 1, width, -1, -width
    return steps, [[ahead * steps[d] + right * steps[(d + 1) % 4] for ahead, right in _OFFSETS] for d in range(4)]


class Knowledge:
    """What the agent has seen of one level.

    Attributes:
        level: minigrid's environment.
        width: Cells in a row of the grid.
        cells: minigrid's list of what is in each cell: None, or an object, door or wall.
        steps: What moving one step adds to a cell, by direction (right, down, left, up).
        seen: 1 for each cell that has been seen.
        things: Cell -> the object or door that is known to be there.
        names: Object or door -> its name, e.g. `red ball 1`, in the order of discovery.
        named: Name -> the object or door.
    """

    def __init__(self, level: Any, observation: dict[str, Any]) -> None:
        """Look around for the first time.

        Args:
            level: minigrid's environment after its reset.
            observation: Its observation of the current state.
        """
        assert level.agent_view_size == VIEW
        self.level = level
        self.width: int = level.width
        self.cells: list[Any] = level.grid.grid
        self.steps, self._offsets = _geometry(self.width)
        self.seen = bytearray(len(self.cells))
        self.things: dict[int, Any] = {}
        self.names: dict[Any, str] = {}
        self.named: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self.look(observation)

    @property
    def cell(self) -> int:
        """The agent's cell."""
        x, y = self.level.agent_pos
        return int(y) * self.width + int(x)

    @property
    def direction(self) -> int:
        """The agent's direction: 0 right, 1 down, 2 left, 3 up."""
        return int(self.level.agent_dir)

    @property
    def pose(self) -> int:
        """The agent's cell and direction in one number."""
        return 4 * self.cell + self.direction

    @property
    def front(self) -> int:
        """The cell ahead of the agent."""
        return self.cell + self.steps[self.direction]

    def look(self, observation: dict[str, Any]) -> None:
        """Take in an observation of minigrid: it must be of the current state."""
        # minigrid marks nothing beyond the outer walls as visible, so every visible cell is in the grid.
        cell, seen, things, cells = self.cell, self.seen, self.things, self.cells
        self._view: bytes = observation["image"][:, :, 0].tobytes()
        self._at = [cell + offset for offset in self._offsets[self.direction]]
        carried = self.level.carrying
        if carried is not None:  # some levels begin with an object in hand
            self._name(carried)
        if cells[self.front] is None:  # it may have been picked up
            things.pop(self.front, None)
        news = False
        for place, kind in zip(self._at, self._view, strict=True):
            if kind != _UNSEEN:
                seen[place] = 1
                if kind > _WALL and place != cell:  # in its own cell the agent sees what it carries
                    things[place] = thing = cells[place]
                    news = news or thing not in self.names
        if news:
            for k in _NEAREST_FIRST:
                if self._view[k] > _WALL and k != OWN:
                    self._name(self.cells[self._at[k]])

    def _name(self, thing: Any) -> None:
        if thing not in self.names:
            kind = f"{thing.color} {thing.type}"
            self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind} {self._counts[kind]}"
            self.names[thing] = name
            self.named[name] = thing

    def place_of(self, thing: Any) -> int | None:
        """Return the cell in which a named thing is; None if it is carried or gone."""
        return next((cell for cell, other in self.things.items() if other is thing), None)

    def title(self, thing: Any) -> str:
        """Return a thing's name, with the state if it is a door."""
        return f"{self.names[thing]} ({door_state(thing)})" if thing.type == "door" else self.names[thing]

    def what_is_in(self, cell: int) -> str:
        """Say what is in a seen cell that is not free."""
        thing = self.cells[cell]
        return "a wall" if thing.type == "wall" else self.title(thing)

    def window(self, pose: int) -> list[int]:
        """Return the cells that the view covers in a pose, in the order of the flattened view.

        Beyond the outer walls, where nothing is visible, they have no meaning.
        """
        cell = pose >> 2
        return [cell + offset for offset in self._offsets[pose & 3]]

    # ---- as text ------------------------------------------------------------------------------------

    def text(self) -> str:
        """Describe what is seen now, what was seen before and what is carried."""
        visible = [k for k in _NEAREST_FIRST if self._view[k] > _WALL and k != OWN]
        in_view = [f"{self.title(self.cells[self._at[k]])} {_where(*_OFFSETS[k])}" for k in visible]
        here = self.things.get(self.cell)
        elsewhere = set(self.things) - {self._at[k] for k in visible} - {self.cell}
        remembered = {self.things[cell]: cell for cell in elsewhere}
        carried = self.level.carrying
        lines = [
            " ".join(f"{side}: {self._ray(ray)}." for side, ray in _RAYS.items()),
            f"In view: {_listed(in_view, '; ')}.",
            f"Walls: {_listed(self._walls(), '; ')}.",
            f"Carrying: {self.names[carried] if carried else 'nothing'}.",
        ]
        if here is not None:
            lines.insert(0, f"You stand in the doorway of {self.names[here]}.")
        if remembered:
            titles = [self.title(thing) for thing in self.names if thing in remembered]
            lines.append(f"Out of view: {'; '.join(titles)}.")
        return "\n".join(lines)

    def _ray(self, ray: list[int]) -> str:
        """Say how far it is free in one direction, and what comes then."""
        free = 0
        for k in ray:
            if self._view[k] != _EMPTY:
                break
            free += 1
        if free == len(ray):
            return f"free for {_steps(free)}, as far as you see"
        k = ray[free]
        kind = self._view[k]
        end = "out of sight" if kind == _UNSEEN else self.what_is_in(self._at[k])
        return f"free for {_steps(free)}, then {end}" if free else end

    def _walls(self) -> list[str]:
        """Group the visible wall cells into runs: along rows first, what is left along columns."""
        walls = [offset for offset, kind in zip(_OFFSETS, self._view, strict=True) if kind == _WALL]
        runs: list[str] = []
        single: dict[int, list[int]] = {}
        rows: dict[int, list[int]] = {}
        for ahead, right in walls:
            rows.setdefault(ahead, []).append(right)
        for ahead in sorted(rows):
            for first, last in _runs(rows[ahead]):
                if first == last:
                    single.setdefault(first, []).append(ahead)
                else:
                    runs.append(f"{ahead} ahead from {_side(first)} to {_side(last)}")
        for right in sorted(single):
            for first, last in _runs(single[right]):
                alone = first == last
                runs.append(_where(first, right)[1:-1] if alone else f"{_side(right)} from {first} to {last} ahead")
        return runs


def visible_places(lets_through: Callable[[int], bool]) -> Iterator[int]:
    """Yield the places of the flattened view that are visible, by minigrid's rule.

    Args:
        lets_through: Whether one sees past a visible place.
    """
    visible = bytearray(VIEW * VIEW)
    visible[OWN] = 1
    for row in reversed(range(VIEW)):
        for columns, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
            for column in columns:
                k = column * VIEW + row
                if visible[k] and lets_through(k):
                    visible[k + side * VIEW] = 1
                    if row:
                        visible[k + side * VIEW - 1] = visible[k - 1] = 1
    return (k for k, seen in enumerate(visible) if seen)


def door_state(door: Any) -> str:
    """Return `open`, `closed` or `locked`."""
    if door.is_open:
        return "open"
    return "locked" if door.is_locked else "closed"


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group numbers into runs of consecutive ones: first and last of each."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _side(right: int) -> str:
    return f"{-right} left" if right < 0 else f"{right} right"


def _where(ahead: int, right: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(_side(right))
    return f"({', '.join(parts)})"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _listed(items: list[str], separator: str) -> str:
    return separator.join(items) if items else "none"
