"""Walks through the whole building, for the simulator's own agent.

That one looks for a shortest walk past every place by trying all walks, which takes seconds and 170 MB of Java's
heap. Here the states are the places and which ones have been seen, 10 times 1,024.
"""

from __future__ import annotations

from collections import deque

DOORS = (
    ("kitchen", "bathroom"),
    ("kitchen", "hallway"),
    ("kitchen", "outside"),
    ("outside", "foundry"),
    ("outside", "greenhouse"),
    ("hallway", "greenhouse"),
    ("hallway", "art studio"),
    ("hallway", "bedroom"),
    ("hallway", "living room"),
    ("hallway", "workshop"),
)
PLACES = tuple(dict.fromkeys(place for door in DOORS for place in door))


def walk_past_everything(start: str) -> list[str]:
    """Return the places of a shortest walk from `start` (which is left out) past all others."""
    walks: deque[tuple[str, ...]] = deque([(start,)])
    known = {(start, frozenset([start]))}
    while True:
        walk = walks.popleft()
        if len(set(walk)) == len(PLACES):
            return list(walk[1:])
        for door in DOORS:
            if walk[-1] in door:
                longer = (*walk, door[1] if walk[-1] == door[0] else door[0])
                state = longer[-1], frozenset(longer)
                if state not in known:
                    known.add(state)
                    walks.append(longer)
