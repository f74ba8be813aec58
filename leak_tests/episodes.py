"""How episodes are played: the modes.

Agents take random valid actions, drawn by a generator of their own, so a run can be repeated.
"""

from __future__ import annotations

import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import gymnasium

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_envs import TextEnv
from agentgym_envs.verbs import Verb, examples
from agentgym_wrappers import SubprocVectorEnv

Env = gymnasium.Env[Any, Any]

# Turns of an episode: many enough for every verb, few enough for thousands of episodes.
TURNS = 10
VECTOR_ENVS = 8
VECTOR_WORKERS = 2
KILL_EVERY = 100

Mode = Literal["episodes", "cycles", "vector", "long"]


class Player(ABC):
    """Plays episodes in one way; what its docstring says stands in the command's help.

    Attributes:
        unit: What is counted.
        open_env: The environment that is open between two calls of `play`, if any.
    """

    unit: ClassVar[str] = "episodes"
    open_env: Any = None

    def __init__(self, env_id: str, seed: int) -> None:
        """Make what is played on.

        Args:
            env_id: Gymnasium id.
            seed: Of the agent's actions. Episode k is reset with seed k.
        """
        self.env_id = env_id
        self.rng = random.Random(f"leak_tests/{seed}")
        self.played = 0

    @abstractmethod
    def play(self, count: int) -> None:
        """Play `count` more."""


class OneEnvironment(Player):
    """One environment, one episode after the other, of at most 10 turns each."""

    def __init__(self, env_id: str, seed: int) -> None:
        """See `Player`."""
        super().__init__(env_id, seed)
        self.open_env = gymnasium.make(env_id)

    def play(self, count: int) -> None:
        """Play `count` more episodes."""
        for _ in range(count):
            play_episode(self.open_env, self.played, self.rng)
            self.played += 1


class CreateAndClose(Player):
    """A new environment for each episode, closed at its end."""

    def play(self, count: int) -> None:
        """Make, play and close `count` more environments."""
        for _ in range(count):
            env: Env = gymnasium.make(self.env_id)
            try:
                play_episode(env, self.played, self.rng)
            finally:
                env.close()
            self.played += 1


class LongEpisodes(Player):
    """One environment, episodes without a limit; turns are counted, and the step to the goal is avoided."""

    unit = "turns"

    def __init__(self, env_id: str, seed: int) -> None:
        """See `Player`."""
        super().__init__(env_id, seed)
        self.open_env = gymnasium.make(env_id, max_episode_steps=-1)
        self.episode = 0
        self.running = False

    def play(self, count: int) -> None:
        """Play `count` more turns, of as few episodes as possible."""
        for _ in range(count):
            if not self.running:
                self.open_env.reset(seed=self.episode)
                self.episode += 1
            action = random_action(self.open_env, self.rng, towards_goal=False)
            *_, terminated, truncated, _ = self.open_env.step(action)
            self.running = not (terminated or truncated)
            self.played += 1


class KilledWorkers(Player):
    """Eight environments in two worker processes, one of which is killed at random every 100 episodes."""

    def __init__(self, env_id: str, seed: int) -> None:
        """See `Player`."""
        super().__init__(env_id, seed)
        make = partial(gymnasium.make, env_id, max_episode_steps=TURNS)
        self.open_env = SubprocVectorEnv([make] * VECTOR_ENVS, workers=VECTOR_WORKERS)
        self.open_env.reset(seed=seed)
        self.next_kill = KILL_EVERY

    def play(self, count: int) -> None:
        """Play until `count` more episodes have ended in all environments together."""
        target = self.played + count
        everyone = range(VECTOR_ENVS)
        while self.played < target:
            listed = self._listed()
            # Where an episode has ended there is nothing to do, and the action is ignored.
            self.open_env.send(everyone, [_one_of(actions or [""], self.rng) for actions in listed])
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
    "vector": KilledWorkers,
    "long": LongEpisodes,
}


def play_episode(env: Env, seed: int, rng: random.Random) -> None:
    """Play one episode of at most `TURNS` turns."""
    env.reset(seed=seed)
    for _ in range(TURNS):
        *_, terminated, truncated, _ = env.step(random_action(env, rng))
        if terminated or truncated:
            break


def random_action(env: Env, rng: random.Random, towards_goal: bool = True) -> Any:
    """Draw an action that the environment accepts.

    Args:
        env: The environment, in an episode.
        rng: Draws it.
        towards_goal: Whether it may be the oracle's next one, if there are others.
    """
    base = env.unwrapped
    if not isinstance(base, TextEnv):
        return env.action_space.sample()
    try:
        listed = base.available_actions()
    except NotImplementedError:
        listed = _examples(base.verbs)
    if not towards_goal:
        best = base.oracle_action()
        listed = [action for action in listed if action != best] or listed
    return _one_of(listed, rng)


def _examples(verbs: Sequence[Verb]) -> list[str]:
    """Actions from the verbs' documentation, where an environment cannot list any."""
    return [example for verb in verbs for example in examples(verb)]


def _one_of(items: list[str], rng: random.Random) -> str:
    return items[int(rng.random() * len(items))]
