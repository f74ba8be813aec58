"""The only module that imports minigrid: makes levels, without what it prints, and runs its bot."""

from __future__ import annotations

import copy
import os
import re
from functools import cache
from importlib import metadata
from typing import Any

import gymnasium

# pygame greets on standard output when minigrid imports it.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
try:
    import minigrid  # noqa: F401 (registers the levels)
    from minigrid.envs.babyai.core import roomgrid_level, verifier
    from minigrid.utils.baby_ai_bot import BabyAIBot
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "minigrid":
        raise
    raise ModuleNotFoundError(
        "BabyAI needs the package minigrid, which is not installed. Install it with: "
        "pip install 'agentgym-suite[babyai]'",
        name="minigrid",
    ) from error


def _say_nothing(*_: object) -> None:
    """Take the place of `print` in the module that announces rejected samples."""


# Redirecting sys.stdout would also swallow what other threads print during a reset.
vars(roomgrid_level)["print"] = _say_nothing

PREFIX = "BabyAI-"
_SEARCHES_A_DECISION = 100
_NAME = re.compile(r"(.+?)(?:-v([0-9]{1,9}))?")


__all__ = ["bot_steps", "data_version", "level_name", "make_level", "registered", "verifier"]


@cache
def registered() -> dict[str, str]:
    """Return the levels by name, `GoToObjS6` -> `BabyAI-GoToObjS6-v1`: the newest version of each."""
    newest: dict[str, tuple[int, str]] = {}
    for id, spec in gymnasium.registry.items():
        if id.startswith(PREFIX):
            name = spec.name.removeprefix(PREFIX)
            newest[name] = max(newest.get(name, (-1, "")), (spec.version or 0, id))
    return {name: id for name, (_, id) in newest.items()}


def level_name(text: str) -> str | None:
    """Return the name of the level that `GoTo` or `BabyAI-GoTo-v0` means; None if there is none.

    An older version means the newest one, which is all that minigrid has.
    """
    match = _NAME.fullmatch(text.removeprefix(PREFIX))
    if match is None or match[1] not in registered():
        return None
    newest = gymnasium.spec(registered()[match[1]]).version or 0
    return match[1] if match[2] is None or int(match[2]) <= newest else None


@cache
def _template(name: str) -> Any:
    """Return a level that is never reset: a reset replaces all that changes, so episodes share the rest of it."""
    spec = gymnasium.spec(registered()[name])
    assert isinstance(spec.entry_point, str)
    return gymnasium.envs.registration.load_env_creator(spec.entry_point)(**spec.kwargs)


def make_level(name: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """Generate a level.

    Args:
        name: A name that `registered` has.
        seed: At least 0; the same one gives the same level.

    Returns:
        minigrid's environment after its reset, without Gymnasium's wrappers, and its observation.

    Raises:
        RuntimeError: If minigrid was told to wait for its `done` action, which the text actions do not have.
    """
    if verifier.use_done_actions:
        raise RuntimeError("BabyAI: minigrid runs with BABYAI_DONE_ACTIONS; unset it, or no task can succeed.")
    level = copy.copy(_template(name))
    observation, _ = level.reset(seed=seed)
    if level.carrying is not None:  # these levels put the object into the hand after they have observed
        observation = level.gen_obs()
    return level, observation


@cache
def data_version() -> str:
    """Return what generates and judges the levels, with its version."""
    return f"minigrid {metadata.version('minigrid')}"


class _BoundedBot(BabyAIBot):
    """minigrid's bot, which never returns from some decisions; here they end with an error."""

    def replan(self, action_taken: Any = None) -> Any:
        """Decide on the next action."""
        self._searches_allowed = self.bfs_counter + _SEARCHES_A_DECISION
        return super().replan(action_taken)

    def _breadth_first_search(self, *arguments: Any, **keywords: Any) -> Any:
        if self.bfs_counter > self._searches_allowed:
            raise RuntimeError("the bot searches without end")
        return super()._breadth_first_search(*arguments, **keywords)


def bot_steps(name: str, seed: int) -> list[int] | None:
    """Let minigrid's own bot play a level.

    Returns:
        Its actions, as minigrid's numbers, or None if it does not succeed.
    """
    level, _ = make_level(name, seed)
    bot = _BoundedBot(level)
    steps: list[int] = []
    while True:
        try:
            steps.append(int(bot.replan()))  # `done`, its last number, when it thinks that it is
        except Exception:  # it gives up with failing assertions and with errors of its own
            return None
        _, reward, terminated, truncated, _ = level.step(steps[-1])
        if terminated or truncated:
            return steps if reward > 0 else None
