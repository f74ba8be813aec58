"""A scenario of a run: its tasks, its horizon, its environments and the rollouts in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.chat import Chat
from agentgym_train.checks import make_schedule
from agentgym_train.config import Config, ConfigError, TaskConfig
from agentgym_train.demonstrations import oracle_trajectories
from agentgym_train.engines import Engine
from agentgym_train.rollout import RolloutRunner
from agentgym_train.task_pools import episode_seed, task_pools
from agentgym_train.trajectory import Episode, Trajectory, open_trajectory
from agentgym_wrappers import ActionParser, HorizonCurriculum, SubprocVectorEnv


class Scenario:
    """What a run has for each entry of `tasks`; for `env`, if there is no list."""

    def __init__(self, config: Config, spec: TaskConfig, where: str) -> None:
        """Choose the tasks and try an environment.

        Args:
            config: The run's configuration.
            spec: The scenario's part of it.
            where: What the configuration calls that part, for errors.

        Raises:
            ConfigError: If there is no such environment, or too few tasks, or the options are not accepted.
        """
        self.config, self.spec, self.where = config, spec, where
        self.name = spec.title
        self.pools = task_pools(config, spec, where)
        self.schedule = make_schedule(config, spec, where)
        self.evaluate_horizon = spec.evaluate_horizon or config.evaluate.horizon
        try:
            self.make_env().close()
        except ValueError as error:
            raise ConfigError(f"{where}.formats={list(spec.formats)}: {error}") from error
        self._vec: SubprocVectorEnv | None = None

    def open(self, engine: Engine, chat: Chat, check: Callable[[], None]) -> None:
        """Start the environments.

        Args:
            engine: Samples the replies.
            chat: Renders prompts and observations.
            check: Called about once a second during rollouts; may raise to abandon them.
        """
        self._check_prompt(chat)
        rollout, evaluate = self.config.rollout, self.config.evaluate
        weights = sum(spec.weight for spec in self.config.scenarios)
        groups = math.ceil(rollout.tasks_per_step * self.spec.weight / weights)
        most = max(groups * rollout.samples_per_task, len(self.pools.test) * evaluate.samples)
        num_envs = min(rollout.max_parallel, most)
        self._vec = SubprocVectorEnv.make(
            self.spec.id,
            num_envs,
            env_wrappers=self._wrappers(),
            workers=min(rollout.env_workers, num_envs),
            autoreset_mode=AutoresetMode.DISABLED,  # the trainer says when an episode begins
            fault_limit=round(100 * self.config.max_error_share),
            **self.spec.options,
        )
        self._runner = RolloutRunner(
            self._vec,
            engine,
            chat,
            max_reply_tokens=rollout.max_reply_tokens,
            max_context=rollout.max_context,
            reply_instruction=self.spec.reply_instruction,
            deterministic=rollout.deterministic,
            check=check,
        )

    def roll_out(
        self, episodes: Sequence[Episode], temperature: float, on_done: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """Roll out episodes (see `RolloutRunner.run`)."""
        return self._runner.run(episodes, temperature, on_done)

    def demonstrations(self, chat: Chat) -> list[Trajectory]:
        """Play the oracle's episodes of the warm start's tasks."""
        env = self.make_env()
        try:
            seeds = [episode_seed("warm_start", task) for task in self.pools.warm_start]
            return oracle_trajectories(env, chat, self.pools.warm_start, seeds, self.spec.reply_instruction)
        finally:
            env.close()

    def make_env(self) -> gymnasium.Env[str, str]:
        """One environment in this process, for what needs no more."""
        env: Any = gymnasium.make(self.spec.id, **self.spec.options)
        for wrapper in self._wrappers():
            env = wrapper(env)
        return cast("gymnasium.Env[str, str]", env)

    def close(self) -> None:
        """Close the environments."""
        if self._vec is not None:
            self._vec.close()

    def _wrappers(self) -> list[Callable[[Any], gymnasium.Env[Any, Any]]]:
        """What is around each environment, innermost first."""
        schedule = 1 if isinstance(self.schedule, AdaptiveHorizon) else self.schedule  # each reset says its horizon
        return [
            partial(ActionParser, formats=self.spec.formats),
            partial(HorizonCurriculum, schedule=schedule),
        ]

    def _check_prompt(self, chat: Chat) -> None:
        """Find out at start, not after the warm start, that prompts do not fit."""
        task = self.pools.train[0]
        env = self.make_env()
        try:
            observation, info = env.reset(seed=0, options={"task": task})
        finally:
            env.close()
        probe = Trajectory(Episode(task, 0, 0, 1, ""))
        open_trajectory(probe, chat, observation, info, self.spec.reply_instruction)
        rollout = self.config.rollout
        if probe.prompt_length + rollout.max_reply_tokens > rollout.max_context:
            raise ConfigError(
                f"rollout.max_context={rollout.max_context} has no room for a prompt of {probe.prompt_length} tokens "
                f"(task {task}) and a reply of rollout.max_reply_tokens={rollout.max_reply_tokens}; raise it."
            )
