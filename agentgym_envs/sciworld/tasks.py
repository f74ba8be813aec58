"""The tasks: AgentGym's order first, then those that it leaves out, each with the simulator's variations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from agentgym_envs.tasks import SPLITS, Task, TaskTable


class Family(NamedTuple):
    """All variations of one of the simulator's tasks.

    Attributes:
        number: Its number in the ScienceWorld paper.
        name: The simulator's name.
        subset: The topic that it belongs to.
        variations: How many there are.
    """

    number: str
    name: str
    subset: str
    variations: int


FAMILIES = (
    Family("1-1", "boil", "Matter", 30),
    Family("1-2", "melt", "Matter", 30),
    Family("1-3", "freeze", "Matter", 30),
    Family("1-4", "change-the-state-of-matter-of", "Matter", 30),
    Family("2-1", "use-thermometer", "Measure", 540),
    Family("2-2", "measure-melting-point-known-substance", "Measure", 436),
    Family("2-3", "measure-melting-point-unknown-substance", "Measure", 300),
    Family("3-1", "power-component", "Power", 20),
    Family("3-2", "power-component-renewable-vs-nonrenewable-energy", "Power", 20),
    Family("3-3", "test-conductivity", "TestCond", 900),
    Family("3-4", "test-conductivity-of-unknown-substances", "TestCond", 600),
    Family("4-1", "find-living-thing", "Find", 300),
    Family("4-2", "find-non-living-thing", "Find", 300),
    Family("4-3", "find-plant", "Find", 300),
    Family("4-4", "find-animal", "Find", 300),
    Family("6-1", "chemistry-mix", "ChemMix", 32),
    Family("6-2", "chemistry-mix-paint-secondary-color", "ChemMix", 36),
    Family("6-3", "chemistry-mix-paint-tertiary-color", "ChemMix", 36),
    Family("7-1", "lifespan-longest-lived", "Lifespan", 125),
    Family("7-2", "lifespan-shortest-lived", "Lifespan", 125),
    Family("7-3", "lifespan-longest-lived-then-shortest-lived", "Lifespan", 125),
    Family("8-1", "identify-life-stages-1", "LifeStages", 14),
    Family("8-2", "identify-life-stages-2", "LifeStages", 10),
    # AgentGym's index ends here.
    Family("5-1", "grow-plant", "Grow", 126),
    Family("5-2", "grow-fruit", "Grow", 126),
    Family("9-1", "inclined-plane-determine-angle", "InclinedPlane", 168),
    Family("9-2", "inclined-plane-friction-named-surfaces", "InclinedPlane", 1386),
    Family("9-3", "inclined-plane-friction-unnamed-surfaces", "InclinedPlane", 162),
    Family("10-1", "mendelian-genetics-known-plant", "Genetics", 120),
    Family("10-2", "mendelian-genetics-unknown-plant", "Genetics", 480),
)
# Variations whose own path fails, as `make verify` found: it sets on fire what it should melt and freeze again, or
# puts the other of two shovels into the box.
UNSOLVED = {"freeze": (11, 19), "test-conductivity": (603, 606, 607, 611, 616, 619, 622, 624)}
LEFT_OUT_BY_AGENTGYM = ("Grow", "InclinedPlane", "Genetics")


class SciWorldTasks(TaskTable):
    """The table, which also knows the simulator's third split, `dev`."""

    def select(self, subset: str | None = None, split: str = "all") -> tuple[Task, ...]:
        """Return the solvable tasks of a subset and split.

        Args:
            subset: One of `subsets`, or None for all of them.
            split: `"train"`, `"dev"`, `"test"` or `"all"`.

        Raises:
            ValueError: If either name is unknown.
        """
        if split == "dev":
            return tuple(task for task in super().select(subset) if task.split == "dev")
        if split not in SPLITS:
            raise ValueError(f"{self.scenario}: unknown split {split!r}; accepted are train, dev, test, all.")
        return super().select(subset, split)


@cache
def task_table() -> SciWorldTasks:
    """Return all tasks in the order of their index."""
    return SciWorldTasks("SciWorld", _tasks())


def name_and_variation(task: Task) -> tuple[str, int]:
    """Return the simulator's name of a task, and the number of the variation."""
    first = 0
    for family in FAMILIES:
        if task.index < first + family.variations:
            return family.name, task.index - first
        first += family.variations
    raise ValueError(f"SciWorld: there is no task with data index {task.index}.")


def index_of(name: str, variation: int) -> int:
    """Return the data index of a variation of one of the simulator's tasks.

    Raises:
        ValueError: If there is none such.
    """
    first = 0
    for family in FAMILIES:
        if family.name == name:
            if not 0 <= variation < family.variations:
                raise ValueError(f"SciWorld: {name} has the variations 0 to {family.variations - 1}, not {variation}.")
            return first + variation
        first += family.variations
    raise ValueError(f"SciWorld: there is no task {name!r}; accepted are {', '.join(f.name for f in FAMILIES)}.")


def _tasks() -> Iterator[Task]:
    index = 0
    for family in FAMILIES:
        for variation in range(family.variations):
            split = _split(variation, family.variations)
            solvable = variation not in UNSOLVED.get(family.name, ())
            yield Task(f"sciworld_{index}", index, family.subset, split, solvable=solvable)
            index += 1


def _split(variation: int, variations: int) -> str:
    """The simulator's own split: half of the variations for training, a quarter for development, the rest for test."""
    quarter = variations // 4
    if variation < 2 * quarter:
        return "train"
    return "dev" if variation < 3 * quarter else "test"
