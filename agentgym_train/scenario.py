"""A scenario of a run: its tasks, its horizon, its environments and the rollouts in them."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.agents import check_formats, load_agent
from agentgym_train.chat import Chat
from agentgym_train.checks import make_schedule
from agentgym_train.config import ConfigError, RunConfig, TaskConfig
from agentgym_train.conversation import Conversation
from agentgym_train.demonstrations import OracleError, oracle_trajectory
from agentgym_train.engines import Engine
from agentgym_train.rollout import RolloutRunner
from agentgym_train.task_pools import episode_seed, task_pools
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.watchdog import Watchdog
from agentgym_wrappers import ActionParser, HorizonCurriculum, ListedActions, SubprocVectorEnv


class Scenario:
    """What a run has for each entry of `tasks`; for `env`, if there is no list."""

    def __init__(self, config: RunConfig, spec: TaskConfig, where: str) -> None:
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
        self.agent = load_agent(config.agent.name, config.agent.options)
        self.formats = tuple(self.agent.formats) or spec.formats
        try:
            self.make_env().close()
        except ValueError as error:
            what = "agent.constrained=true" if config.agent.constrained else f"{where}.formats={list(self.formats)}"
            raise ConfigError(f"{what}: {error}") from error
        if config.agent.constrained or config.imitates_oracle:
            check_formats(self.agent, self.formats)
        self._vec: SubprocVectorEnv | None = None
        self.source = ""  # what the environment says of its data, once one has been reset

    def open(self, engine: Engine, chat: Chat, check: Callable[[], None], watchdog: Watchdog) -> None:
        """Start the environments.

        Args:
            engine: Samples the replies.
            chat: Renders prompts and observations.
            check: Called about once a second during rollouts; may raise to abandon them.
            watchdog: Is told what rollouts wait for.

        Raises:
            ConfigError: If a task does not begin, or its prompt has no room.
        """
        self._check_prompt(chat)
        rollout, evaluate, agent = self.config.rollout, self.config.evaluate, self.config.agent
        weights = sum(spec.weight for spec in self.config.scenarios)
        groups, samples = self.config.groups
        own_groups = math.ceil(groups * self.spec.weight / weights)
        most = max(own_groups * samples, len(self.pools.test) * evaluate.samples)
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
            agent=self.agent,
            last_turns=agent.last_turns,
            constrained=agent.constrained,
            deterministic=rollout.deterministic,
            check=check,
            watchdog=watchdog,
        )

    def begin(self, episodes: Sequence[Episode], temperature: float) -> list[Trajectory]:
        """Put episodes behind those that are under way (see `RolloutRunner.begin`)."""
        return self._runner.begin(episodes, temperature)

    def work(self, on_done: Callable[[Trajectory], None], until: Callable[[], bool]) -> None:
        """Roll out what was begun (see `RolloutRunner.work`)."""
        self._runner.work(on_done, until)

    def held_out(self, samples: int, sampling_seed: str) -> list[Episode]:
        """The episodes of an evaluation: each held-out task so many times from the same text."""
        return [
            Episode(task, episode_seed("evaluate", task), sample, self.evaluate_horizon, sampling_seed)
            for task in self.pools.test
            for sample in range(samples)
        ]

    def demonstrations(
        self, chat: Chat, tasks: Sequence[str], on_done: Callable[[], None], check: Callable[[], None]
    ) -> list[Trajectory]:
        """Play the oracle's episodes of tasks; those that it does not solve are left out.

        Args:
            chat: Renders prompts and observations.
            tasks: Task ids.
            on_done: Called after each episode.
            check: Called before each; may raise to abandon them.
        """
        played = []
        env = self.make_env()
        try:
            for task in tasks:
                check()
                seed, instruction = episode_seed("warm_start", task), self.spec.reply_instruction
                with suppress(OracleError):
                    played.append(
                        oracle_trajectory(env, chat, task, seed, instruction, self.agent, self.config.agent.last_turns)
                    )
                on_done()
        finally:
            env.close()
        return played

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
            *([ListedActions] if self.config.agent.constrained else []),
            partial(ActionParser, formats=self.formats),
            partial(HorizonCurriculum, schedule=schedule),
        ]

    def _check_prompt(self, chat: Chat) -> None:
        """Find out at start, not after the warm start, that tasks do not begin or prompts do not fit."""
        task = (self.pools.train or self.pools.test)[0]
        env = self.make_env()
        try:
            observation, info = env.reset(seed=0, options={"task": task})
        except Exception as error:  # an environment may be anybody's
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"{self.where}: {self.spec.id} cannot begin its task {task}: {type(error).__name__}: {error} "
                f"({place.filename}, line {place.lineno})"
            ) from error
        finally:
            env.close()
        self.source = str(info["source"])
        probe = Trajectory(Episode(task, 0, 0, 1, ""))
        Conversation(probe, chat, self.agent, self.spec.reply_instruction).begin(observation, info)
        rollout = self.config.rollout
        if probe.prompt_length + rollout.max_reply_tokens > rollout.max_context:
            raise ConfigError(
                f"rollout.max_context={rollout.max_context} has no room for a prompt of {probe.prompt_length} tokens "
                f"(task {task}) and a reply of rollout.max_reply_tokens={rollout.max_reply_tokens}; raise it."
            )
