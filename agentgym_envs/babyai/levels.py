"""The 40 levels of AgentGym's index, and their tasks."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from agentgym_envs.tasks import REPEAT, Task, TaskTable

# Level -> subset, in the order of AgentGym's index. The grouping is this project's own.
LEVELS = {
    "GoToRedBallGrey": "GoTo",
    "GoToRedBall": "GoTo",
    "GoToRedBallNoDists": "GoTo",
    "GoToObjS6": "GoTo",
    "GoToLocalS8N7": "GoTo",
    "GoToObjMazeS7": "GoTo",
    "GoToImpUnlock": "GoTo",
    "GoToSeqS5R2": "GoTo",
    "GoToRedBlueBall": "GoTo",
    "GoToDoor": "GoTo",
    "GoToObjDoor": "GoTo",
    "Open": "Open",
    "OpenRedDoor": "Open",
    "OpenDoorLoc": "Open",
    "OpenRedBlueDoorsDebug": "Open",
    "OpenDoorsOrderN4Debug": "Open",
    "Pickup": "Pickup",
    "UnblockPickup": "Pickup",
    "PickupLoc": "Pickup",
    "PickupDistDebug": "Pickup",
    "PickupAbove": "Pickup",
    "PutNextLocalS6N4": "PutNext",
    "PutNextS7N4Carrying": "PutNext",
    "Unlock": "Unlock",
    "UnlockLocalDist": "Unlock",
    "KeyInBox": "Unlock",
    "UnlockPickupDist": "Unlock",
    "BlockedUnlockPickup": "Unlock",
    "UnlockToUnlock": "Unlock",
    "ActionObjDoor": "Synth",
    "FindObjS7": "Pickup",
    "KeyCorridorS6R3": "Unlock",
    "OneRoomS20": "Pickup",
    "MoveTwoAcrossS8N9": "PutNext",
    "SynthS5R2": "Synth",
    "SynthLoc": "Synth",
    "SynthSeq": "Synth",
    "MiniBossLevel": "Synth",
    "BossLevel": "Synth",
    "BossLevelNoUnlock": "Synth",
}
NAMES = tuple(LEVELS)
TEST_SEEDS = 25
TRAIN_SEEDS = 1_000


@cache
def unsolved() -> dict[str, frozenset[int]]:
    """Return the seeds of tasks that the oracle does not solve, by level: most of them nobody can."""
    return _seeds("unsolved.json")


@cache
def repeats() -> dict[str, frozenset[int]]:
    """Return the training seeds, by level, that generate the level and mission of a test seed."""
    return _seeds("repeats.json")


def _seeds(file: str) -> dict[str, frozenset[int]]:
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return {level: frozenset(seeds) for level, seeds in json.loads(text).items()}


def level_and_seed(index: int) -> tuple[str, int]:
    """Return the level and seed that a data index names, as in AgentGym."""
    return NAMES[index % len(NAMES)], index // len(NAMES)


def task_index(level: str, seed: int) -> int:
    """Return the data index of a level and seed."""
    return seed * len(NAMES) + NAMES.index(level)


@cache
def task_table() -> TaskTable:
    """Return the tasks of the test and training seeds."""
    return TaskTable("BabyAI", map(task, range((TEST_SEEDS + TRAIN_SEEDS) * len(NAMES))))


def task(index: int) -> Task:
    """Return the task with a data index."""
    level, seed = level_and_seed(index)
    split = "test" if seed < TEST_SEEDS else REPEAT if seed in repeats().get(level, ()) else "train"
    return Task(f"babyai_{index}", index, LEVELS[level], split, solvable=seed not in unsolved().get(level, ()))
