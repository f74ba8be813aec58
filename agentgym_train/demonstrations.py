"""Episodes of a scenario's oracle as trajectories, for supervised training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import gymnasium

from agentgym_envs import TextEnv
from agentgym_train.agents import Agent
from agentgym_train.chat import Chat
from agentgym_train.conversation import Conversation
from agentgym_train.engines import Completion
from agentgym_train.trajectory import Episode, Trajectory

MAX_TURNS = 100


class OracleError(RuntimeError):
    """The oracle does not solve a task."""


def oracle_trajectory(
    env: gymnasium.Env[str, str],
    chat: Chat,
    task: str,
    seed: int,
    reply_instruction: str = "",
    agent: Agent | None = None,
    last_turns: int = 0,
) -> Trajectory:
    """Play one episode with the oracle, and write it down as an agent that takes its actions would have it.

    Args:
        env: A text environment, wrapped in `HorizonCurriculum`, and in `ActionParser` with formats in which the
            agent writes actions.
        chat: Renders prompts and observations.
        task: Task id.
        seed: Seed of the episode.
        reply_instruction: Added to the environment's instruction, as in rollouts.
        agent: How the model is asked to act; `direct` by default.
        last_turns: Turns that a prompt shows; 0 for the whole history.

    Returns:
        A trajectory whose replies, end-of-turn tokens included, have mask 1.

    Raises:
        OracleError: If the oracle does not solve the task.
    """
    agent = agent or Agent()
    statement, started = env.reset(seed=seed, options={"task": task, "horizon": MAX_TURNS})
    actions: list[str] = []
    answers: list[tuple[str, float, bool]] = []  # observation, reward, valid
    info, ended = started, False
    while not ended and (action := cast(TextEnv, env.unwrapped).oracle_action()) is not None:
        observation, reward, terminated, truncated, info = env.step(agent.demonstration([action])[-1])
        actions.append(action)
        answers.append((observation, float(reward), bool(info["valid_action"])))
        ended = terminated or truncated
    if not info["success"]:
        raise OracleError(f"the oracle did not solve {task}; it cannot serve as a demonstration.")
    trajectory = Trajectory(Episode(task, seed, 0, MAX_TURNS, "oracle"))
    talk = Conversation(trajectory, chat, agent, reply_instruction, last_turns)
    talk.begin(statement, started)
    following = deque(zip(actions, answers, strict=True))
    for reply in agent.demonstration(actions):
        aside = agent.aside(talk.replies)
        tokens = chat.reply(reply)
        talk.reply(Completion(tokens, [0.0] * len(tokens), "stop"), acted=aside is None)
        if aside is not None:
            talk.say(aside)
            continue
        turn = trajectory.turns[-1]
        turn.action, (turn.observation, turn.reward, turn.valid) = following.popleft()
        if following:
            talk.say(turn.observation)
    trajectory.reward = sum(turn.reward for turn in trajectory.turns)
    trajectory.success, trajectory.score, trajectory.end = True, float(info["score"]), str(info["end"])
    return trajectory


def oracle_trajectories(
    env: gymnasium.Env[str, str],
    chat: Chat,
    tasks: Sequence[str],
    seeds: Sequence[int],
    reply_instruction: str = "",
    agent: Agent | None = None,
    last_turns: int = 0,
) -> list[Trajectory]:
    """Play one episode per task (see `oracle_trajectory`)."""
    return [
        oracle_trajectory(env, chat, task, seed, reply_instruction, agent, last_turns)
        for task, seed in zip(tasks, seeds, strict=True)
    ]
