"""The BabyAI scenario: carry out an instruction in a grid world of rooms, of which a part is seen at a time.

The levels, their rules and their judgement are minigrid's. `docs/scenarios/babyai.md` describes the text.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentgym_envs.babyai import grammar, levels, oracle, planner, simulator
from agentgym_envs.babyai.grammar import Command
from agentgym_envs.babyai.view import Knowledge
from agentgym_envs.core import Outcome, Start, TextEnv, check_init_keys
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.verbs import Verb, quoted

_TEXT_VERSION = "text 1"  # a new one as soon as the same actions give another text
_MAX_SEED = 2**31 - 1
_TILE = 32  # pixels


class BabyAIEnv(TextEnv):
    """Carry out the mission: look, walk, open doors, pick things up and put them down.

    Score: 1 for success. With `reward="time"` it is minigrid's own value, `1 - 0.9 * steps / max_steps`.
    `info` also has `level`, `steps` (minigrid's, of which a planned action takes several) and `max_steps`,
    at which minigrid ends the episode.

    Starting elsewhere: `options={"init": {"level": "BossLevel", "seed": 3, "actions": ["turn left"]}}` with
    any BabyAI level of minigrid, by name or id; the actions are carried out before the episode begins.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    scenario: ClassVar[str] = "BabyAI"
    verbs: ClassVar[Sequence[Verb]] = grammar.VERBS
    reward_modes: ClassVar[Sequence[str]] = (*TextEnv.reward_modes, "time")

    @classmethod
    def task_table(cls) -> TaskTable:
        """All levels in AgentGym's order, seed by seed."""
        return levels.task_table()

    @classmethod
    def data_hash(cls) -> str:
        """Versions of minigrid and of this text."""
        return f"{simulator.data_version()}, {_TEXT_VERSION}"

    def available_actions(self) -> list[str]:
        """The actions that are possible now.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        known = self._checked_knowledge()
        if self._outcome.end:
            return []
        return [*planner.available(known), grammar.check_available_actions()]

    def oracle_action(self) -> str | None:
        """The next action of an agent that solves the task, knowing only what has been seen.

        None once the episode has ended, and where it sees no way any more (a box that the mission needs
        has been opened).

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        known = self._checked_knowledge()
        return None if self._outcome.end else oracle.next_action(known)

    def bot_plan(self) -> list[str] | None:
        """Let minigrid's own bot play the level from its beginning.

        Returns:
            Its actions, or None if it does not succeed.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        self._checked_knowledge()
        steps = simulator.bot_steps(*self._start_of)
        return None if steps is None else [grammar.PRIMITIVES[step]() for step in steps]

    def render(self) -> Any:
        """Return the last turn as text, or the grid with the agent's view as an image.

        Returns:
            For `render_mode="ansi"` a string, for `"rgb_array"` an array of uint8, [height, width, 3].
        """
        if self.render_mode != "rgb_array":
            return super().render()
        image: NDArray[np.uint8] = self._checked_knowledge().level.get_frame(tile_size=_TILE)
        return image

    def _checked_knowledge(self) -> Knowledge:
        self._check_episode()
        return self._known

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        given = _checked_init(init)
        if given.level in levels.LEVELS and given.seed < levels.TEST_SEEDS + levels.TRAIN_SEEDS:
            return replace(self.task_table().find(levels.task_index(given.level, given.seed)), source="custom")
        subset = levels.LEVELS.get(given.level, "custom")
        return Task(f"babyai-{given.level}_{given.seed}", -1, subset, "train", source="custom")

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        del rng  # a task is a level with its seed: nothing is drawn
        given = _Init(*levels.level_and_seed(task.index)) if init is None else _checked_init(init)
        level, observation = simulator.make_level(given.level, given.seed)
        self._start_of = given.level, given.seed
        self._known = Knowledge(level, observation)
        for number, action in enumerate(given.actions, start=1):
            outcome = self._play(self._clean(action))
            if not outcome.valid or outcome.end:
                told = "ends the episode" if outcome.end else "is refused"
                raise ValueError(f"BabyAI: action {number} of options['init'] {told}: {outcome.observation}")
        limit = level.max_steps - level.step_count
        statement = f"Mission: {level.mission}\nStep limit: {limit}\n{self._known.text()}"
        return Start(statement, level.mission, info=self._facts())

    def _act(self, action: str) -> Outcome:
        known = self._known
        try:
            command = grammar.parse(action)
        except grammar.NotUnderstood as error:
            return Outcome(str(error), 0.0, valid=False, info=self._facts())
        if command.verb is grammar.check_available_actions:
            listed = "\n".join([*planner.available(known), grammar.check_available_actions()])
            return Outcome(f"You can:\n{listed}", 0.0, info=self._facts())
        try:
            steps = planner.plan(known, command)
        except planner.NotPossible as error:
            told = f"Could not execute {quoted(action)}: {error}."
            return Outcome(told, 0.0, valid=False, info=self._facts())
        return self._carry_out(command, steps)

    def _carry_out(self, command: Command, steps: Sequence[int]) -> Outcome:
        """Take the steps, until the episode ends or something is in the way."""
        known, level = self._known, self._known.level
        told = _result(known, command)
        terminated = truncated = False
        reward = 0.0
        for taken, step in enumerate(steps):
            if step == planner.FORWARD and not planner.passable(known.cells[known.front]):
                told = _stopped(taken, f"{known.what_is_in(known.front)} is in the next cell ahead")
                break
            observation, reward, terminated, truncated, _ = level.step(step)
            known.look(observation)
            if (terminated or truncated) and taken + 1 < len(steps):
                told = _stopped(taken + 1, "the episode is over")
            if terminated or truncated:
                break
        score, end = 0.0, ""
        if terminated:
            # minigrid pays for success alone, and then at least 0.1.
            end = "success" if reward > 0 else "failure"
            told += " The mission is accomplished." if reward > 0 else " The mission has failed for good."
            score = min(1.0, float(reward)) if self.reward_mode == "time" else float(reward > 0)
        elif truncated:
            end = "simulator_limit"
            told += f" The limit of {level.max_steps} steps is reached."
        return Outcome(f"{told}\n{known.text()}", score, end == "success", end=end, info=self._facts())

    def _facts(self) -> dict[str, str | int | float | bool]:
        level = self._known.level
        return {"level": self._start_of[0], "steps": int(level.step_count), "max_steps": int(level.max_steps)}


def _result(known: Knowledge, command: Command) -> str:
    """Say what the action does, as seen before it is carried out."""
    verb, name = command
    ahead = known.things.get(known.front)
    if verb is grammar.turn_left:
        return "You turned left."
    if verb is grammar.turn_right:
        return "You turned right."
    if verb is grammar.move_forward:
        return "You moved one step forward."
    if verb is grammar.pick_up:
        return f"You picked up {known.names[ahead]}."
    if verb is grammar.drop:
        return f"You dropped {known.names[known.level.carrying]}."
    if verb is grammar.toggle:
        return _toggled(known, ahead)
    if verb is grammar.go_to:
        return f"You went to {name}."
    if verb is grammar.pick_up_object:
        return f"You went to {name} and picked it up."
    if verb is grammar.go_through:
        return f"You went through {name}."
    return f"{_toggled(known, known.named[name])[:-1]} and went through it."


def _toggled(known: Knowledge, thing: Any) -> str:
    name = known.names[thing]
    if thing.type == "box":
        return f"You opened {name}: {'something was' if thing.contains else 'nothing was'} in it, and the box is gone."
    if thing.is_open:
        return f"You closed {name}."
    return f"You unlocked and opened {name}." if thing.is_locked else f"You opened {name}."


def _stopped(taken: int, why: str) -> str:
    return f"You stopped after {taken} step{'' if taken == 1 else 's'}: {why}."


class _Init(NamedTuple):
    """A checked `options["init"]`."""

    level: str
    seed: int
    actions: Sequence[str] = ()


def _checked_init(init: Mapping[str, Any]) -> _Init:
    """Validate `options["init"]`.

    Raises:
        ValueError: If it is not accepted; the message says what is.
    """
    where = "BabyAI: options['init']"
    check_init_keys(where, init, "level", ["seed", "actions"])
    level = simulator.level_name(init["level"]) if isinstance(init["level"], str) else None
    if level is None:
        names = sorted(simulator.registered())
        near = difflib.get_close_matches(quoted(str(init["level"])), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{where}: there is no level {quoted(repr(init['level']))}; accepted are {', '.join(names)}.{hint}"
        )
    seed = init.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"{where}: seed is a whole number from 0 to {_MAX_SEED}, not {quoted(repr(seed))}.")
    actions = init.get("actions", [])
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise ValueError(f"{where}: actions is a list of actions, not {quoted(repr(actions))}.")
    return _Init(level, seed, actions)
