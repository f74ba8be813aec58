"""Episodes of a scenario's oracle as trajectories, for supervised training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import gymnasium

from agentgym_envs import TextEnv
from agentgym_train.chat import Chat
from agentgym_train.trajectory import Episode, Trajectory, Turn, open_trajectory

MAX_TURNS = 100


def oracle_trajectory(
    env: gymnasium.Env[str, str], chat: Chat, task: str, seed: int, reply_instruction: str = ""
) -> Trajectory:
    """Play one episode with the oracle.

    Args:
        env: A text environment, wrapped in `HorizonCurriculum`.
        chat: Renders prompts and observations.
        task: Task id.
        seed: Seed of the episode.
        reply_instruction: Added to the environment's instruction, as in rollouts.

    Returns:
        A trajectory whose replies, end-of-turn tokens included, have mask 1.

    Raises:
        RuntimeError: If the oracle does not solve the task.
    """
    observation, info = env.reset(seed=seed, options={"task": task, "horizon": MAX_TURNS})
    trajectory = Trajectory(Episode(task, seed, 0, MAX_TURNS, "oracle"))
    open_trajectory(trajectory, chat, observation, info, reply_instruction)
    done = False
    while not done:
        action = cast(TextEnv, env.unwrapped).oracle_action()
        if action is None:
            break
        reply = chat.reply(action)
        span = trajectory.append_sampled(reply, [0.0] * len(reply))
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        turn = Turn(*span, action, action, observation, float(reward), bool(info["valid_action"]), "stop")
        trajectory.turns.append(turn)
        trajectory.reward += float(reward)
        if not done:
            trajectory.append_given(chat.after_reply(observation, ended=True))
    if not info["success"]:
        raise RuntimeError(f"the oracle did not solve {task}; it cannot serve as a demonstration.")
    trajectory.success, trajectory.score, trajectory.end = True, float(info["score"]), str(info["end"])
    return trajectory


def oracle_trajectories(
    env: gymnasium.Env[str, str],
    chat: Chat,
    tasks: Sequence[str],
    seeds: Sequence[int],
    reply_instruction: str = "",
) -> list[Trajectory]:
    """Play one episode per task (see `oracle_trajectory`)."""
    return [
        oracle_trajectory(env, chat, task, seed, reply_instruction) for task, seed in zip(tasks, seeds, strict=True)
    ]
