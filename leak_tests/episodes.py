"""How episodes are played: the modes.

Agents take random actions, drawn by a generator of their own, so a run can be repeated. They are valid ones, but where
a list of those is asked for only now and then: then they may be of the last list.
"""

from __future__ import annotations

import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_envs import TextEnv
from agentgym_envs.verbs import Verb, examples
from agentgym_wrappers import SubprocVectorEnv

if TYPE_CHECKING:
    from leak_tests.registry import Subject

Env = gymnasium.Env[Any, Any]

# Turns of an episode: many enough for every verb, few enough for thousands of episodes.
TURNS = 10
VECTOR_ENVS = 8
VECTOR_WORKERS = 2
KILL_EVERY = 100

Mode = Literal["episodes", "cycles", "shared", "vector", "long"]


class Player(ABC):
    """Plays episodes in one way; what its docstring says stands in the command's help.

    Attributes:
        unit: What is counted.
        open_env: The environment that is open between two calls of `play`, if any.
    """

    unit: ClassVar[str] = "episodes"
    open_env: Any = None

    def __init__(self, subject: Subject, seed: int) -> None:
        """Make what is played on.

        Args:
            subject: The environment.
            seed: Of the agent's actions. Episode k is reset with seed k.
        """
        self.subject = subject
        self.rng = random.Random(f"leak_tests/{seed}")
        self.agent = Agent(subject, self.rng)
        self.played = 0

    @abstractmethod
    def play(self, count: int) -> None:
        """Play `count` more."""

    def settle(self) -> None:
        """Begin the same episode before each measurement, where the subject is to be measured in one."""
        if self.subject.same_episode and self.open_env is not None:
            self.open_env.reset(seed=0)


class OneEnvironment(Player):
    """One environment, one episode after the other, of at most 10 turns each."""

    def __init__(self, subject: Subject, seed: int) -> None:
        """See `Player`."""
        super().__init__(subject, seed)
        self.open_env = gymnasium.make(subject.env)

    def play(self, count: int) -> None:
        """Play `count` more episodes."""
        for _ in range(count):
            play_episode(self.open_env, self.played, self.agent)
            self.played += 1


class CreateAndClose(Player):
    """A new environment for each episode, closed at its end."""

    def play(self, count: int) -> None:
        """Make, play and close `count` more environments."""
        for _ in range(count):
            env: Env = gymnasium.make(self.subject.env)
            try:
                play_episode(env, self.played, self.agent)
            finally:
                env.close()
            self.played += 1


class BesideOthers(CreateAndClose):
    """A new environment for each episode, as in `cycles`, beside one that stays open and keeps what they share."""

    def __init__(self, subject: Subject, seed: int) -> None:
        """See `Player`."""
        super().__init__(subject, seed)
        self.open_env = gymnasium.make(subject.env)
        self.open_env.reset(seed=0)


class LongEpisodes(Player):
    """One environment, episodes without a limit; turns are counted, and the step to the goal is avoided."""

    unit = "turns"

    def __init__(self, subject: Subject, seed: int) -> None:
        """See `Player`."""
        super().__init__(subject, seed)
        self.open_env = gymnasium.make(subject.env, max_episode_steps=-1)
        self.episode = 0
        self.running = False

    def play(self, count: int) -> None:
        """Play `count` more turns, of as few episodes as possible."""
        for _ in range(count):
            if not self.running:
                self.open_env.reset(seed=self.episode)
                self.episode += 1
            action = self.agent.act(self.open_env, towards_end=False)
            *_, terminated, truncated, _ = self.open_env.step(action)
            self.running = not (terminated or truncated)
            self.played += 1

    def settle(self) -> None:
        """Leave the episode as it is: it goes on."""


class KilledWorkers(Player):
    """Eight environments in two worker processes, one of which is killed at random every 100 episodes."""

    def __init__(self, subject: Subject, seed: int) -> None:
        """See `Player`."""
        super().__init__(subject, seed)
        make = partial(gymnasium.make, subject.env, max_episode_steps=TURNS)
        self.open_env = SubprocVectorEnv([make] * VECTOR_ENVS, workers=VECTOR_WORKERS)
        self.open_env.reset(seed=seed)
        self.next_kill = KILL_EVERY
        self.lists: list[list[str]] = []

    def play(self, count: int) -> None:
        """Play until `count` more episodes have ended in all environments together."""
        target = self.played + count
        everyone = range(VECTOR_ENVS)
        while self.played < target:
            if not self.lists or self.rng.random() < self.subject.listing:
                self.lists = self._listed()
            # Where an episode has ended there is nothing to do, and the action is ignored.
            self.open_env.send(everyone, [_one_of(actions or [""], self.rng) for actions in self.lists])
            if self.played >= self.next_kill:
                pids = self.open_env.worker_pids
                os.kill(pids[int(self.rng.random() * len(pids))], signal.SIGKILL)
                self.next_kill += KILL_EVERY
            results = self.open_env.recv(at_least=VECTOR_ENVS)
            self.played += sum(result.terminated or result.truncated for result in results)

    def _listed(self) -> list[list[str]]:
        """Actions that each environment accepts."""
        try:
            return list(self.open_env.call("available_actions"))
        except NotImplementedError:
            return [_examples(verbs) for verbs in self.open_env.get_attr("verbs")]


MODES: dict[Mode, type[Player]] = {
    "episodes": OneEnvironment,
    "cycles": CreateAndClose,
    "shared": BesideOthers,
    "vector": KilledWorkers,
    "long": LongEpisodes,
}


class Agent:
    """Takes random actions."""

    def __init__(self, subject: Subject, rng: random.Random) -> None:
        """Say for which environment; `rng` draws the actions."""
        self._subject = subject
        self._rng = rng
        self._listed: list[str] = []

    def act(self, env: Env, towards_end: bool = True) -> Any:
        """Draw an action.

        Args:
            env: The environment, in an episode.
            towards_end: Whether it may be the oracle's next one, or one that may end the episode, if there are others.
        """
        base = env.unwrapped
        if not isinstance(base, TextEnv):
            return env.action_space.sample()
        if not self._listed or self._rng.random() < self._subject.listing:
            self._listed = _listed(base)
            if not towards_end:
                best, ends = base.oracle_action(), self._subject.ends
                others = [action for action in self._listed if action != best and not action.startswith(ends)]
                self._listed = others or self._listed
        return _one_of(self._listed, self._rng)


def play_episode(env: Env, seed: int, agent: Agent) -> None:
    """Play one episode of at most `TURNS` turns."""
    env.reset(seed=seed)
    for _ in range(TURNS):
        *_, terminated, truncated, _ = env.step(agent.act(env))
        if terminated or truncated:
            break


def _listed(env: TextEnv) -> list[str]:
    try:
        return env.available_actions()
    except NotImplementedError:
        return _examples(env.verbs)


def _examples(verbs: Sequence[Verb]) -> list[str]:
    """Actions from the verbs' documentation, where an environment cannot list any."""
    return [example for verb in verbs for example in examples(verb)]


def _one_of(items: list[str], rng: random.Random) -> str:
    return items[int(rng.random() * len(items))]
