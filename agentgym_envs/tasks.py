"""Task tables: which tasks a scenario has, and how users name them.

A task has three names: its id (`textcraft_17`), its integer data index (17) and, in task files, an object
with an `item_id`, as in AgentGym's files. Each scenario's page says whether its order is AgentGym's.
`TaskTable.find` takes the first two, `load_task_list` all.
"""

from __future__ import annotations

import difflib
import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentgym_envs.verbs import quoted

SPLITS = ("train", "test", "all")
REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a scenario.

    Attributes:
        id: Unique name, `<scenario>_<index>`; embedded sets use a name of their own.
        index: Data index (real data only), or the position in an embedded set.
        subset: Name of the subset that holds the task, as in the registered ids.
        split: `"train"` or `"test"`, or `REPEAT` for one that equals a test task under another name and stays out
            of every split. The splits are this project's own.
        source: `"real"` for the benchmark's data, `"embedded"` for data made for this package, `"custom"`
            for an episode that the user programmed with `options={"init": ...}`.
        solvable: False for tasks that no oracle solves. They keep their index and stay out of every split.
    """

    id: str
    index: int
    subset: str
    split: str
    source: str = "real"
    solvable: bool = True


class TaskTable:
    """All tasks of one scenario, in the order of their data index."""

    def __init__(self, scenario: str, tasks: Iterable[Task]) -> None:
        """Index the tasks.

        Args:
            scenario: Name used in error messages, e.g. `"TextCraft"`.
            tasks: The tasks in the order of their index, which must run from 0 without gaps.
        """
        self.scenario = scenario
        self._tasks = tuple(tasks)
        self._by_id = {task.id: task for task in self._tasks}
        self._selected: dict[tuple[str | None, str], tuple[Task, ...]] = {}  # shared by all environments

    def __len__(self) -> int:
        """Number of tasks, unsolvable ones included."""
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        """The tasks in the order of their index."""
        return iter(self._tasks)

    @cached_property
    def subsets(self) -> tuple[str, ...]:
        """Names of the subsets, in the order in which they first occur."""
        return tuple(dict.fromkeys(task.subset for task in self._tasks))

    def find(self, name: str | int) -> Task:
        """Look a task up by id or, for real data, by its integer data index.

        Raises:
            ValueError: If there is no such task.
        """
        if hasattr(name, "__index__") and not isinstance(name, bool):  # int, or an integer of NumPy
            name = operator.index(name)
            if 0 <= name < len(self._tasks) and self._tasks[name].source == "real":
                return self._tasks[name]
            if self._tasks and self._tasks[0].source != "real":
                raise ValueError(
                    f"{self.scenario}: task {name} is an integer, and integers name the benchmark's real data only; "
                    f"this set is {self._tasks[0].source}. Use an id such as {self._tasks[0].id!r}."
                )
            raise ValueError(
                f"{self.scenario}: there is no task with data index {name}; accepted are 0 to {len(self._tasks) - 1}."
            )
        if not isinstance(name, str):
            raise ValueError(
                f"{self.scenario}: a task is named by its id (str) or data index (int), not by {quoted(repr(name))} "
                f"of type {type(name).__name__}."
            )
        try:
            return self._by_id[name]
        except KeyError:
            near = difflib.get_close_matches(quoted(name), self._by_id, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            first, last = self._tasks[0].id, self._tasks[-1].id
            raise ValueError(
                f"{self.scenario}: there is no task {quoted(repr(name))}; accepted are {first!r} to {last!r}.{hint}"
            ) from None

    def select(self, subset: str | None = None, split: str = "all") -> tuple[Task, ...]:
        """Return the solvable tasks of a subset and split.

        Args:
            subset: One of `subsets`, or None for all of them.
            split: `"train"`, `"test"` or `"all"`.

        Raises:
            ValueError: If either name is unknown.
        """
        if subset is not None and subset not in self.subsets:
            raise ValueError(f"{self.scenario}: unknown subset {subset!r}; accepted are {', '.join(self.subsets)}.")
        if split not in SPLITS:
            raise ValueError(f"{self.scenario}: unknown split {split!r}; accepted are {', '.join(SPLITS)}.")
        key = subset, split
        if key not in self._selected:
            self._selected[key] = tuple(
                task
                for task in self._tasks
                if task.solvable and subset in (None, task.subset)
                if task.split == split or (split == "all" and task.split != REPEAT)
            )
        return self._selected[key]


def load_task_list(tasks: Sequence[str | int] | str | Path, table: TaskTable) -> tuple[Task, ...]:
    """Resolve an explicit list of tasks, or a JSON file that holds one.

    Args:
        tasks: Ids and data indices, or the path of a JSON file with a list of ids, of data indices or of
            objects with an `item_id` (the format of AgentGym's train and test files).
        table: The scenario's tasks.

    Raises:
        ValueError: If the list is empty, the file cannot be read or an entry names no task.
    """
    where = f"tasks={tasks!r}"
    if isinstance(tasks, str | Path):
        try:
            entries = json.loads(Path(tasks).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{table.scenario}: {where} cannot be read as a JSON task file ({error}). Accepted is the path of a "
                "JSON list of ids, data indices or objects with an 'item_id'; one task alone is written tasks=[id]."
            ) from error
    else:
        entries = list(tasks) if isinstance(tasks, Iterable) else tasks
    if not isinstance(entries, list):
        raise ValueError(f"{table.scenario}: {where} is no list; give a list of ids and data indices.")
    if not entries:
        raise ValueError(f"{table.scenario}: {where} holds no tasks; give at least one id or data index.")
    names = [entry["item_id"] if isinstance(entry, dict) and "item_id" in entry else entry for entry in entries]
    return tuple(table.find(name) for name in names)
