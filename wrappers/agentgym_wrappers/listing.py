"""The actions that are available, told with each observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from agentgym_envs import TextEnv
from agentgym_envs.core import checked_record


class ListedActions(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Put what `TextEnv.available_actions` lists into `info["available_actions"]`, an action on each line.

    At the end of an episode there is no list. It is for whoever chooses among the actions in another process; who has
    the environment at hand calls the method. Some lists are costly: those of SciWorld take seconds.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        """Wrap a text environment.

        Args:
            env: A `TextEnv`, wrapped or not.

        Raises:
            ValueError: If `env` is no text environment, or one whose actions cannot be listed.
        """
        base = getattr(env, "unwrapped", None)
        if not isinstance(base, TextEnv):
            raise ValueError(f"ListedActions wraps agentgym_envs.TextEnv environments, not {env!r}.")
        try:
            base.available_actions()
        except NotImplementedError as error:
            raise ValueError(f"ListedActions: {error}") from error
        except gymnasium.error.ResetNeeded:
            pass
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._base = base
        self._told: dict[str, Any] = {}  # what the last info has from this wrapper

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._listed(info)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and list what can be done next unless the episode has ended."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._told = {}
        if not (terminated or truncated):
            info = self._listed(info)
        return observation, reward, terminated, truncated, info

    def _listed(self, info: dict[str, Any]) -> dict[str, Any]:
        self._told = {"available_actions": "\n".join(self._base.available_actions())}
        return {**info, **self._told}

    def snapshot_state(self) -> dict[str, Any]:
        """Return the wrapper's part of `agentgym_wrappers.snapshot`: what it told last."""
        return {"told": self._told}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take over a saved state; returns the entries that this wrapper adds to `info`.

        Raises:
            ValueError: If it is no state of this wrapper.
        """
        told: dict[str, Any] = checked_record("the state", state, told=dict)["told"]
        if told:
            checked_record("what was told", told, available_actions=str)
        self._told = told
        return told
