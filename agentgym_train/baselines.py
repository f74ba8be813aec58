"""Policies without a model, to compare with: the scenario's oracle, and random choice among the available actions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

from agentgym_envs import TextEnv
from agentgym_train.config import ConfigError
from agentgym_train.scenario import Scenario
from agentgym_train.trajectory import Episode, Trajectory, Turn

Chooser = Callable[[TextEnv, Episode, int], str | None]
"""Chooses the action of an episode's turn of a number; None ends the episode."""


def oracle(env: TextEnv, episode: Episode, turn: int) -> str | None:
    """The oracle's next action."""
    del episode, turn
    return env.oracle_action()


def at_random(env: TextEnv, episode: Episode, turn: int) -> str | None:
    """One of the available actions, each as probable."""
    actions = env.available_actions()
    rng = random.Random(f"{episode.sampling_seed}/{episode.task}/{episode.sample}/{turn}")
    return rng.choice(actions) if actions else None


BASELINES: dict[str, Chooser] = {"oracle": oracle, "random": at_random}


def play(
    scenario: Scenario,
    episodes: Sequence[Episode],
    policy: str,
    on_done: Callable[[Trajectory], None],
    check: Callable[[], None],
) -> None:
    """Play episodes one after the other in this process; their trajectories have texts, and no tokens.

    Args:
        scenario: Where.
        episodes: What to play.
        policy: One of `BASELINES`.
        on_done: Called with each finished trajectory.
        check: Called before each turn; may raise to abandon the rest.

    Raises:
        ConfigError: If the scenario cannot list the actions that a random policy chooses among.
    """
    env = scenario.make_env()
    inner = cast(TextEnv, env.unwrapped)
    try:
        for episode in episodes:
            trajectory = Trajectory(episode)
            options = {"task": episode.task, "horizon": episode.horizon}
            observation, info = env.reset(seed=episode.seed, options=options)
            trajectory.goal, trajectory.subset = str(info["goal"]), str(info["subset"])
            trajectory.instruction = str(info["instruction"])
            trajectory.prompt = f"{trajectory.instruction}\n\n{observation}"
            scenario.source = str(info["source"])
            while not trajectory.end:
                check()
                action = BASELINES[policy](inner, episode, len(trajectory.turns))
                if action is None:
                    trajectory.end = "no_action"
                    break
                reply = scenario.agent.demonstration([action])[-1]
                observation, reward, terminated, truncated, info = env.step(reply)
                valid = bool(info["valid_action"])
                trajectory.turns.append(Turn(0, 0, reply, action, observation, float(reward), valid, "stop"))
                trajectory.reward += float(reward)
                trajectory.score, trajectory.success = float(info["score"]), bool(info["success"])
                if terminated or truncated:
                    trajectory.end = str(info.get("end", "truncated"))
            if trajectory.end == "fault":
                trajectory.end, trajectory.error = "error", str(info["fault"])
            on_done(trajectory)
    except NotImplementedError as error:
        raise ConfigError(f"policy={policy!r}: {scenario.spec.id} cannot list its actions ({error}).") from error
    finally:
        env.close()
