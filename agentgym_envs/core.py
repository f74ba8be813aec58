"""The environment contract that all scenarios share: spaces, tasks, scores, endings, snapshots, faults.

A scenario subclasses `TextEnv` and writes `_begin` and `_act`; the rest of this file makes of them a
`gymnasium.Env[str, str]` with one behaviour everywhere. `docs/contract.md` says it from the user's side.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import reprlib
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from agentgym_envs.tasks import Task, TaskTable, load_task_list
from agentgym_envs.verbs import Verb, instruction, quoted

MAX_ACTION_CHARS = 8_192
MAX_OBSERVATION_CHARS = 65_536
CUT_MARKER = "\n[observation cut here]"
TERMINAL_ENDS = ("success", "failure", "answer")
TRUNCATING_ENDS = ("simulator_limit", "fault")
SNAPSHOT_FORMAT = 1

Info = dict[str, str | int | float | bool]


class TextSpace(gymnasium.Space[str]):
    """Every Unicode string of at most `max_length` characters, lone surrogates excluded.

    Not a subclass of `gymnasium.spaces.Text`: Gymnasium's shared memory returns a constant for those,
    whereas it refuses a space that it does not know when the vector environment is made.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        """Make the space.

        Args:
            max_length: Largest number of characters, at least 1.
            seed: Seed of `sample`.
        """
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {max_length}.")
        self.max_length = max_length
        super().__init__(None, None, seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a random string, half of its characters printable ASCII, the rest from all of Unicode."""
        if mask is not None or probability is not None:
            raise ValueError("TextSpace.sample takes neither a mask nor a probability.")
        length = int(self.np_random.integers(0, min(self.max_length, 64) + 1))
        ascii_points = self.np_random.integers(0x20, 0x7F, length)
        # The 2,048 surrogates are left out by moving every later code point down.
        unicode_points = self.np_random.integers(0, 0x110000 - 0x800, length)
        unicode_points += np.where(unicode_points >= 0xD800, 0x800, 0)
        points = np.where(self.np_random.random(length) < 0.5, ascii_points, unicode_points)
        return "".join(map(chr, points))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string of this space."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        return x.isascii() or not any("\ud800" <= char <= "\udfff" for char in x)

    @property
    def is_np_flattenable(self) -> bool:
        """Strings have no fixed-size array form."""
        return False

    def __eq__(self, other: object) -> bool:
        """Spaces of one length are equal."""
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    def __hash__(self) -> int:
        """Equal spaces hash alike."""
        return hash((TextSpace, self.max_length))

    def __repr__(self) -> str:
        """Constructor call that makes an equal space."""
        return f"TextSpace({self.max_length})"


class Fault(RuntimeError):
    """The simulator, browser or retriever behind an environment died or stopped answering."""

    def __init__(self, kind: str, message: str) -> None:
        """Describe the fault.

        Args:
            kind: Short machine-readable kind, reported as `info["fault_kind"]`.
            message: What happened, for people, reported as `info["fault"]`.
        """
        super().__init__(message)
        self.kind = kind


class RefusedAction(str):
    """An agent's reply that holds no single action; passing it to `step` spends a turn and changes nothing.

    The parsing wrapper forwards these, so that one outer step stays exactly one inner step.
    """

    reason: str

    def __new__(cls, reply: str, reason: str) -> RefusedAction:
        """Wrap a reply.

        Args:
            reply: What the agent said.
            reason: What was wrong and what is accepted; becomes the observation.
        """
        refused = super().__new__(cls, reply)
        refused.reason = reason
        return refused

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """What copies and pickles are made with."""
        return str(self), self.reason


class Start(NamedTuple):
    """What `TextEnv._begin` returns.

    Attributes:
        observation: The whole task statement, the goal included.
        goal: The goal alone, for `info["goal"]`.
        score: Score in [0, 1] that the initial state already has.
        info: Further entries for `info`, as in `Outcome`.
    """

    observation: str
    goal: str
    score: float = 0.0
    info: Mapping[str, str | int | float | bool] = {}


class Outcome(NamedTuple):
    """What `TextEnv._act` returns.

    Attributes:
        observation: Text for the agent.
        score: The benchmark's own measure after the action, in [0, 1].
        success: The task's own flag, never derived from the score.
        valid: False when the action was refused.
        end: Empty while the episode goes on, else one of `TERMINAL_ENDS` or `TRUNCATING_ENDS`.
        info: Further entries for `info`: str, int, float or bool, one type per key for ever.
    """

    observation: str
    score: float
    success: bool = False
    valid: bool = True
    end: str = ""
    info: Mapping[str, str | int | float | bool] = {}


class TextEnv(gymnasium.Env[str, str]):
    """Base of the scenarios: a Gymnasium environment whose observations and actions are strings.

    Starting state: `reset(seed=s)` starts episode 0 of seed s, each further `reset()` the next one.
    Episode k draws from (s, k) only, so it does not matter what ran before or beside it. `options` takes
    one of `task` (an id or data index), `init` (an episode programmed by the user) and `snapshot`.

    Rewards: the change of `info["score"]`, which counts as 0 before the reset. Over any episode with at
    least one step the rewards add up to the last score. `reward="outcome"` pays the same sum at the end.

    Episode end: `terminated` is the task's own end, `truncated` a limit or a fault; `info["end"]` says
    which. `step` after the end raises `gymnasium.error.ResetNeeded`.

    Information: always `task`, `subset`, `source`, `score`, `success`, `valid_action`, `turn`; on reset
    also `goal` and `instruction`; at the end also `end`; on a fault also `fault_kind` and `fault`, and
    `recovered` where the episode was restored and goes on.

    Attributes:
        scenario: Name of the scenario, as in the registered ids.
        verbs: The scenario's actions (see `agentgym_envs.verbs`).
        reward_modes: Accepted values of `reward`.
        deterministic: Whether a replay of the actions restores an episode. If so, faults are recovered.
        stream: Seed and number of the episode that the next reset without a seed starts; None before the
            first reset. Setting it makes the environment go on where another one was.
        turn_limit: Turns after which a wrapper will cut the episode, if known. Only `reward="outcome"`
            depends on it. `HorizonCurriculum` sets it; without one it is the id's registered
            `max_episode_steps`, so set it by hand beside any other `TimeLimit`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own declaration)
    scenario: ClassVar[str]
    verbs: ClassVar[Sequence[Verb]]
    reward_modes: ClassVar[Sequence[str]] = ("step", "outcome")
    deterministic: ClassVar[bool] = True

    def __init__(
        self,
        *,
        subset: str | None = None,
        split: str = "train",
        tasks: Sequence[str | int] | str | Path | None = None,
        reward: str = "step",
        render_mode: str | None = None,
    ) -> None:
        """Make the environment.

        Args:
            subset: Subset that seeds choose tasks from; None means all.
            split: Split that seeds choose tasks from: `"train"`, `"test"` or `"all"`.
            tasks: Explicit tasks that seeds choose from, in place of subset and split: ids, data indices,
                or the path of a JSON file (AgentGym's item-id files are accepted).
            reward: `"step"` pays each change of the score at once, `"outcome"` the sum at the end.
            render_mode: `None` or one of `metadata["render_modes"]`.

        Raises:
            ValueError: If an argument is not accepted; the message says what is.
        """
        if reward not in self.reward_modes:
            accepted = ", ".join(self.reward_modes)
            raise ValueError(f"{self.scenario}: unknown reward {reward!r}; accepted are {accepted}.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            accepted = ", ".join(map(repr, [None, *self.metadata["render_modes"]]))
            raise ValueError(f"{self.scenario}: unknown render_mode {render_mode!r}; accepted are {accepted}.")
        table = self.task_table()
        chosen = table.select(subset, split)
        self.tasks = chosen if tasks is None else load_task_list(tasks, table)
        if not self.tasks:
            raise ValueError(f"{self.scenario}: subset {subset!r} has no tasks in split {split!r}.")
        self.action_space = TextSpace(MAX_ACTION_CHARS)
        self.observation_space = TextSpace(MAX_OBSERVATION_CHARS)
        self.reward_mode = reward
        self.render_mode = render_mode
        self.turn_limit: int | None = None
        self.instruction = instruction(self.verbs)
        self.stream: tuple[int, int] | None = None
        self._running = False
        self._record: dict[str, Any] | None = None  # how the current episode began
        self._actions: list[str] = []  # since the record's start
        self._prefix = 0  # how many of them came before the reset, in a snapshot that it started from
        self._paid = 0.0

    # ---- what a scenario provides -------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def task_table(cls) -> TaskTable:
        """All tasks of the scenario (loaded once a process)."""

    @classmethod
    @abstractmethod
    def data_hash(cls) -> str:
        """Hash of the data that episodes depend on; snapshots are refused where it differs."""

    @abstractmethod
    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        """Start an episode; everything random is drawn with `rng.random()`.

        Raises:
            Fault: If the simulator cannot start.
        """

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Carry out one cleaned action. A bad one is an `Outcome` with `valid=False`, never an exception.

        Raises:
            Fault: If the simulator died.
        """

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        """Validate `options["init"]` and return the task that it starts.

        Raises:
            ValueError: If the scenario does not accept it.
        """
        given = quoted(repr(dict(init)))
        raise ValueError(f"{self.scenario}: options['init'] is not supported by this scenario; got {given}.")

    def _restart(self) -> None:
        """Replace the simulator after a fault. Scenarios that can fault override it."""

    def available_actions(self) -> list[str]:
        """Actions that are accepted verbatim in the current state; the oracle's next one is among them."""
        raise NotImplementedError(f"{self.scenario}: the actions cannot be listed.")

    def oracle_action(self) -> str | None:
        """The next action of a solution from the current state, or None where there is none."""
        raise NotImplementedError(f"{self.scenario}: there is no oracle.")

    # ---- Gymnasium's interface ----------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode.

        Args:
            seed: Starts episode 0 of this seed. Without it the next episode of the last seed starts.
            options: At most one of `{"task": id or data index}`, `{"init": {...}}`, `{"snapshot": bytes}`.

        Returns:
            The task statement and `info`.

        Raises:
            ValueError: If an option is not accepted. The environment then needs a good reset.
            Fault: If the simulator cannot be started, twice.
        """
        self._running = False
        self._record = None
        super().reset(seed=seed)
        if seed is not None or self.stream is None:
            self.stream = (self.np_random_seed, 0)
        key = self.stream
        choice = _checked_options(self.scenario, options)
        if "snapshot" in choice:
            self._replay(self._checked_snapshot(choice["snapshot"]))
            if not self._running:
                raise ValueError(f"{self.scenario}: the snapshot's episode has ended; no episode can start there.")
            self._prefix, self._paid = len(self._actions), 0.0
        else:
            init = choice.get("init")
            if "init" in choice:
                if not isinstance(init, Mapping):
                    raise ValueError(f"{self.scenario}: options['init'] must be a mapping, not {quoted(repr(init))}.")
                init = _plain_copy(self.scenario, init)
                task = self._task_of_init(init)
            elif "task" in choice:
                task = self.task_table().find(choice["task"])
            else:
                task = self.tasks[int(_rng("task", key).random() * len(self.tasks))]
            self._start({"task": task.id, "init": init, "seed": key[0], "episode": key[1]})
        self.stream = (key[0], key[1] + 1)
        info = self._info()
        info["goal"] = self._goal
        info["instruction"] = self.instruction
        return self._observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out one action.

        Args:
            action: The agent's text. One that is not understood spends a turn and is answered with
                what was wrong and what is accepted.

        Returns:
            Observation, reward (a float), terminated, truncated, info.

        Raises:
            gymnasium.error.ResetNeeded: If no episode is running.
            ValueError: If the action is not a string.
        """
        if not self._running:
            raise ResetNeeded(f"{self.scenario}: no episode is running; call reset() before step().")
        cleaned = self._clean(action)
        recovered = False
        try:
            try:
                outcome = self._play(cleaned)
            except Fault:
                if not self.deterministic:
                    raise
                self._recover()
                outcome = self._play(cleaned)
                recovered = True
        except Fault as fault:
            details = {**self._outcome.info, "fault_kind": fault.kind, "fault": str(fault)}
            outcome = Outcome(self._observation, self._outcome.score, end="fault", info=details)
        except BaseException:
            self._running = False  # the state is unknown: only a reset makes it usable
            raise
        self._actions.append(cleaned)
        self._accept(outcome)
        end = outcome.end
        terminated = end in TERMINAL_ENDS
        truncated = end in TRUNCATING_ENDS
        due = self.reward_mode == "step" or terminated or truncated or self._turn == self._known_limit()
        reward = outcome.score - self._paid if due else 0.0
        self._paid += reward
        info = self._info()
        if recovered:
            info["recovered"] = True
        if end:
            self._running = False
        return self._observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """Return the last action and observation as text when `render_mode="ansi"`."""
        if self.render_mode != "ansi":
            return None
        if self._record is None:
            return ""
        return f"> {self._actions[-1]}\n{self._observation}" if self._actions else self._observation

    def close(self) -> None:
        """Free everything the environment holds; a second call does nothing."""
        self._running = False
        super().close()

    # ---- snapshots ----------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the current state as JSON bytes: how the episode began and what was done since.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet, or the episode ended in a fault.
        """
        return json.dumps(self._snapshot_record()).encode()

    def _snapshot_record(self) -> dict[str, Any]:
        """What a snapshot holds; a scenario may add to it."""
        if self._record is None or self.stream is None:
            raise ResetNeeded(f"{self.scenario}: there is nothing to snapshot; call reset() first.")
        if self._outcome.end == "fault":
            raise ResetNeeded(f"{self.scenario}: the episode ended in a fault, its state is lost; call reset() first.")
        return {
            "format": SNAPSHOT_FORMAT,
            "scenario": self.scenario,
            "data": self.data_hash(),
            "reward": self.reward_mode,
            "turn_limit": self.turn_limit,
            "stream": self.stream,
            "start": self._record,
            "prefix": self._prefix,
            "actions": [{"refused": a.reason} if isinstance(a, RefusedAction) else a for a in self._actions],
            "observation": _digest(self._observation),
        }

    def restore(self, snapshot: bytes) -> tuple[str, Info]:
        """Put the environment into a saved state, its turn limit and further episodes included.

        Args:
            snapshot: What `snapshot()` of this scenario returned, here or in another process.

        Returns:
            The observation and `info` as they were.

        Raises:
            ValueError: If the bytes are no snapshot of this scenario and data.
            RuntimeError: If the replay did not reproduce the saved observation.
        """
        self._running = False
        self._record = None
        record = self._checked_snapshot(snapshot)
        self.turn_limit = record["turn_limit"]
        self._replay(record)
        self.stream = (record["stream"][0], record["stream"][1])
        return self._observation, self._info()

    def _checked_snapshot(self, snapshot: bytes) -> dict[str, Any]:
        try:
            record = _checked_replay_record(json.loads(snapshot))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.scenario}: this is no snapshot ({type(error).__name__}: {error}); give the bytes "
                "that snapshot() of this environment returned."
            ) from error
        expected = SNAPSHOT_FORMAT, self.scenario, self.data_hash(), self.reward_mode
        for name, want in zip(("format", "scenario", "data", "reward"), expected, strict=True):
            if record[name] != want:
                raise ValueError(
                    f"{self.scenario}: the snapshot's {name} is {record[name]!r}, but this environment's is "
                    f"{want!r}; restore it in one made with the same id, options and package versions."
                )
        return record

    def _replay(self, record: Mapping[str, Any]) -> None:
        self._start(record["start"])
        for number, entry in enumerate(record["actions"]):
            if not self._running:
                break
            if number == record["prefix"]:
                self._prefix, self._paid = number, 0.0
            action = RefusedAction("", entry["refused"]) if isinstance(entry, dict) else entry
            self.step(action)
        if record["prefix"] == len(record["actions"]):
            self._prefix, self._paid = record["prefix"], 0.0
        complete = len(self._actions) == len(record["actions"])
        if not complete or _digest(self._observation) != record["observation"]:
            self._running, self._record = False, None
            raise RuntimeError(
                f"{self.scenario}: the replay of {len(record['actions'])} actions did not reproduce the "
                "saved observation; the snapshot was made with other data or another version."
            )

    # ---- the episode --------------------------------------------------------------------------------

    def _check_episode(self) -> None:
        """Raise ResetNeeded if there was no reset yet."""
        if self._record is None:
            raise ResetNeeded(f"{self.scenario}: there is no episode; call reset() first.")

    def _start(self, record: Mapping[str, Any]) -> None:
        """Begin the episode that `record` (task, init, seed, episode) describes."""
        init = record["init"]
        task = self._task_of_init(init) if init is not None else self.task_table().find(record["task"])
        for attempt in (1, 2):
            try:
                start = self._begin(task, _rng("episode", (record["seed"], record["episode"])), init)
                break
            except Fault:
                if attempt == 2:
                    raise
                self._restart()
        self._record = dict(record)
        self._task = task
        self._goal = start.goal
        self._actions = []
        self._prefix, self._paid = 0, 0.0
        self._accept(Outcome(start.observation, start.score, info=start.info))
        self._running = True

    def _recover(self) -> None:
        """After a fault: replace the simulator and bring it to where the episode stood."""
        assert self._record is not None
        self._restart()
        record = self._record
        self._begin(self._task, _rng("episode", (record["seed"], record["episode"])), record["init"])
        for action in self._actions:
            self._play(action)

    def _play(self, action: str) -> Outcome:
        if isinstance(action, RefusedAction):
            return self._outcome._replace(observation=action.reason, valid=False)
        return self._act(action)

    def _accept(self, outcome: Outcome) -> None:
        """Make an outcome the current state."""
        text = outcome.observation
        if len(text) > MAX_OBSERVATION_CHARS:
            text = text[: MAX_OBSERVATION_CHARS - len(CUT_MARKER)] + CUT_MARKER
        self._observation = text
        self._outcome = outcome

    def _clean(self, action: str) -> str:
        """Make an agent's text safe to handle: no lone surrogates or control characters, no outer space."""
        if isinstance(action, RefusedAction):
            return RefusedAction(action, _printable(action.reason))
        if not isinstance(action, str):
            raise ValueError(f"{self.scenario}: an action is a string, not {action!r} of type {type(action).__name__}.")
        if len(action) > MAX_ACTION_CHARS:
            told = f"The action has {len(action)} characters; at most {MAX_ACTION_CHARS} are accepted."
            return RefusedAction("", told)
        return str(_printable(action).strip())

    def _info(self) -> Info:
        task, outcome = self._task, self._outcome
        info: Info = {
            "task": task.id,
            "subset": task.subset,
            "source": task.source,
            "score": outcome.score,
            "success": outcome.success,
            "valid_action": outcome.valid,
            "turn": self._turn,
            **outcome.info,
        }
        if outcome.end:
            info["end"] = outcome.end
        return info

    @property
    def _turn(self) -> int:
        """Turns since the reset."""
        return len(self._actions) - self._prefix

    def _known_limit(self) -> int | None:
        if self.turn_limit is not None:
            return self.turn_limit
        # Gymnasium keeps a TimeLimit from the environment inside, so that only the registered limit is known.
        registered = gymnasium.registry.get(self.spec.id) if self.spec is not None else None
        return None if registered is None else registered.max_episode_steps


def _checked_options(scenario: str, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    accepted = ("task", "init", "snapshot")
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise ValueError(f"{scenario}: reset options are a mapping with one of {', '.join(accepted)}, not {given!r}.")
    for name in given:
        if name == "horizon":
            raise ValueError(
                f"{scenario}: options['horizon'] needs agentgym_wrappers.HorizonCurriculum around the env."
            )
        if name not in accepted:
            near = difflib.get_close_matches(str(name), accepted, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{scenario}: unknown reset option {name!r}; accepted are {', '.join(accepted)}.{hint}")
    if len(given) > 1:
        raise ValueError(f"{scenario}: reset options {', '.join(given)} exclude each other; give one of them.")
    return given


def _plain_copy(scenario: str, init: Mapping[str, Any]) -> dict[str, Any]:
    """Copy `options["init"]` in its JSON form: what a snapshot of the episode will hold."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(init), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{scenario}: options['init'] must hold JSON values only, so that snapshots can keep it ({error})."
        ) from error
    return copy


def check_init_keys(where: str, init: Mapping[str, Any], required: str, optional: Sequence[str]) -> None:
    """Check the keys of `options["init"]`.

    Args:
        where: Scenario and option, for the message.
        init: What the user gave.
        required: The key that it must have.
        optional: Keys that it may have.

    Raises:
        ValueError: If one is missing or unknown.
    """
    if required not in init or any(key not in (required, *optional) for key in init):
        may = ", ".join(optional)
        raise ValueError(f"{where} has the keys {list(init)}; it needs {required} and may have {may}.")


def checked_record(what: str, record: object, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """Return a decoded JSON object if it has these keys with values of exactly these types.

    Args:
        what: What it should be, for the message.
        record: What `json.loads` returned, or a part of it.
        types: Key -> accepted type or types.

    Raises:
        ValueError: If it has not.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{what} is {reprlib.repr(record)}, not an object")
    for name, accepted in types.items():
        kinds = accepted if isinstance(accepted, tuple) else (accepted,)
        if name not in record:
            raise ValueError(f"{what} has no {name!r}")
        if type(record[name]) not in kinds:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{what} has {reprlib.repr(record[name])} as {name!r}, not of type {wanted}")
    return record


def _checked_replay_record(value: object) -> dict[str, Any]:
    """Return what `TextEnv.snapshot` wrote, or raise a ValueError that says what is wrong with it."""
    record = checked_record(
        "the record",
        value,
        format=int,
        scenario=str,
        data=str,
        reward=str,
        turn_limit=(int, type(None)),
        stream=list,
        start=dict,
        prefix=int,
        actions=list,
        observation=str,
    )
    checked_record("its start", record["start"], task=str, init=(dict, type(None)), seed=int, episode=int)
    if [type(number) for number in record["stream"]] != [int, int]:
        raise ValueError(f"its stream is {reprlib.repr(record['stream'])}, not a seed and a number")
    for action in record["actions"]:
        if not isinstance(action, str):
            checked_record("an action that is no string", action, refused=str)
    if not 0 <= record["prefix"] <= len(record["actions"]):
        raise ValueError(f"its prefix is {record['prefix']}, but there are {len(record['actions'])} actions")
    return record


def _printable(text: str) -> str:
    """Replace lone surrogates, and control characters other than line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") else "\ufffd" for char in text
    )


def _rng(purpose: str, key: Sequence[int]) -> random.Random:
    """A generator of its own for one purpose of one episode.

    Seeding with a string does not depend on PYTHONHASHSEED, and `random()` gives the same stream in
    every Python version, which `sample` and `shuffle` do not promise.
    """
    return random.Random(f"{purpose}/{key[0]}/{key[1]}")


def shuffled(items: Iterable[Any], rng: random.Random) -> list[Any]:
    """Return the items in random order, drawn with `rng.random()` alone."""
    return sorted(items, key=lambda _: rng.random())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
