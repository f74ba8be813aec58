"""Arrays and action numbers in place of text, for reinforcement-learning code that knows no language.

`EncodeObservation` makes arrays of the observations, `DiscreteActions` numbers of the actions, with a mask of
those that are possible. Together they are what Stable-Baselines3, CleanRL and the like take; see
`docs/third-party.md`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete, Text
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from agentgym_envs import RefusedAction, TextEnv, TextSpace
from agentgym_envs.core import checked_record
from agentgym_wrappers.encoders import Encoder, NgramHash, TokenIds, encoder_from, stable_hash

Mask = NDArray[np.int8]
_LARGEST = 2**31 - 1


class EncodeObservation(gymnasium.ObservationWrapper[NDArray[Any], Any, Any], RecordConstructorArgs):
    """Encode each observation, together with the episode's goal, as an array of a fixed shape."""

    def __init__(self, env: gymnasium.Env[str, Any], encoder: Encoder | Mapping[str, Any] | None = None) -> None:
        """Wrap a text environment.

        Args:
            env: A `TextEnv`, wrapped or not.
            encoder: One of `agentgym_wrappers.encoders`, its plain form, or any object with a `space` and a
                call `(goal, observation) -> array`. None is `NgramHash()`.

        Raises:
            ValueError: If `encoder` is none, or `env` no text environment or one whose observations are no text.
        """
        _text_env(env, type(self).__name__, "observation")
        self.encoder = NgramHash() if encoder is None else encoder_from(encoder)
        self._own = isinstance(self.encoder, NgramHash | TokenIds)
        RecordConstructorArgs.__init__(self, encoder=self.encoder.to_dict() if self._own else self.encoder)  # type: ignore[union-attr]
        super().__init__(env)
        self.observation_space = self.encoder.space
        self._goal = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode and remember its goal."""
        text: Any
        text, info = self.env.reset(seed=seed, options=options)
        self._goal = str(info["goal"])
        return self.observation(text), info

    def observation(self, observation: str) -> NDArray[Any]:
        """Return the array of an observation of the present episode.

        Raises:
            ValueError: If an encoder of the user's returns what is not in its space, such as NaN.
        """
        array = self.encoder(self._goal, observation)
        inside = self._own or (isinstance(array, np.ndarray) and self.observation_space.contains(array))
        if not inside:
            raise ValueError(
                f"EncodeObservation: the encoder returned {array!r}, which is not in its space "
                f"{self.observation_space}: a numpy array of that shape, type and range, without NaN."
            )
        return array

    def snapshot_state(self) -> dict[str, Any]:
        """Return the wrapper's part of `agentgym_wrappers.snapshot`."""
        return {"goal": self._goal}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take over a saved state.

        Raises:
            ValueError: If it is no state of this wrapper.
        """
        self._goal = checked_record("the state", state, goal=str)["goal"]
        return {}


class DiscreteActions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Number the actions that are possible now, and tell which numbers these are.

    Without `actions`, an action's number is the hash of its text: the same in every state, episode and process,
    whatever the goal is. (Where two possible actions fall on one number, the later in alphabetical order takes
    the next free one. The fewer numbers are in use, the rarer that is.) With `actions`, it is the position in that
    list, and other actions cannot be chosen.

    A number that stands for nothing now spends a turn, as every bad action does, and `valid_action` is False.

    Information: `action_mask`, an int8 array [n] with 1 for what is possible, also returned as bool by
    `action_masks()` (the name that sb3-contrib asks for); after a step also `action`, the text of the action that
    was carried out, empty if there was none. Once an episode has ended and nothing is possible, the mask is all 1:
    what comes next is the reset, whatever is chosen, and a softmax over nothing would be NaN.
    """

    def __init__(
        self, env: gymnasium.Env[Any, str], n: int = 1024, actions: Sequence[str] | None = None, order: int = 0
    ) -> None:
        """Wrap a text environment that can list its actions.

        Args:
            env: A `TextEnv`, wrapped or not.
            n: Number of actions of the space; what `actions` has, if that is given.
            actions: A fixed list of actions, e.g. BabyAI's primitive ones.
            order: Another order of the numbers, for checking that a result does not depend on it.

        Raises:
            ValueError: If an argument is not accepted, the scenario cannot list its actions, or `env` does not take
                text as actions.
        """
        base = _text_env(env, type(self).__name__, "action")
        try:
            base.available_actions()
        except NotImplementedError as error:
            raise ValueError(
                f"DiscreteActions numbers the actions that are possible, but {base.scenario} cannot list them "
                f"({error}). Train a language model on it (docs/training.md, agentgym_wrappers.trl), or choose a "
                "scenario that lists its actions: BabyAI, SciWorld, TextCraft."
            ) from error
        except ResetNeeded:
            pass  # it can, once there is an episode
        self.n = _checked_count("n", n, 2)
        self.order = _checked_count("order", order, 0)
        self.actions = None if actions is None else _checked_list(actions)
        RecordConstructorArgs.__init__(
            self, n=self.n, actions=None if self.actions is None else list(self.actions), order=self.order
        )
        super().__init__(env)
        self._base = base
        if self.actions is not None:
            self.n = len(self.actions)
        self._fixed = None if self.actions is None else _in_order(self.actions, self.order)
        self.action_space = Discrete(self.n)
        self._possible: dict[int, str] | None = None  # by number, until the next step; None: not looked at yet
        self._told: dict[str, str] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._told, self._possible = {}, None
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "action_mask": self._mask()}

    def step(self, action: int) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Carry out the action with a number.

        Raises:
            ValueError: If it is no number from 0 to n - 1.
        """
        number = self._checked_number(action)
        text = self.possible_actions().get(number)
        self._told, self._possible = {"action": text or ""}, None
        refused = f"No action has the number {number} now; action_mask tells which numbers have one."
        result = self.env.step(RefusedAction("", refused) if text is None else text)
        observation, reward, terminated, truncated, info = result
        return observation, reward, terminated, truncated, {**info, **self._told, "action_mask": self._mask()}

    def possible_actions(self) -> dict[int, str]:
        """Return the actions that are possible now, by number, in the order of their numbers."""
        if self._possible is None:
            listed = self._base.available_actions()
            if self._fixed is not None:
                now = set(listed)
                self._possible = {number: text for text, number in self._fixed.items() if text in now}
            else:
                self._possible = self._hashed(listed)
        return self._possible

    def action_masks(self) -> NDArray[np.bool_]:
        """Return True for each number that stands for a possible action, [n]."""
        return self._mask().astype(np.bool_)

    def snapshot_state(self) -> dict[str, Any]:
        """Return the wrapper's part of `agentgym_wrappers.snapshot`."""
        return {"told": self._told, "mask": np.flatnonzero(self._mask()).tolist()}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take over a saved state; returns the entries that this wrapper adds to `info`.

        Raises:
            ValueError: If it is no state of this wrapper.
        """
        record = checked_record("the state", state, told=dict, mask=list)
        if record["told"]:
            checked_record("what was told", record["told"], action=str)
        mask = np.zeros(self.n, np.int8)
        mask[np.asarray(record["mask"], np.intp)] = 1
        self._told, self._possible = record["told"], None
        return {**self._told, "action_mask": mask}

    def _hashed(self, listed: Sequence[str]) -> dict[int, str]:
        if len(listed) > self.n:
            raise ValueError(
                f"DiscreteActions: {self._base.scenario} lists {len(listed)} actions in this state, but n={self.n}; "
                f"give n={1 << (2 * len(listed)).bit_length()}."
            )
        by_number: dict[int, str] = {}
        for text in sorted(set(listed)):
            number = _hash(text, self.order) % self.n
            while number in by_number:
                number = (number + 1) % self.n
            by_number[number] = text
        return dict(sorted(by_number.items()))

    def _mask(self) -> Mask:
        possible = list(self.possible_actions())
        if not possible:
            return np.ones(self.n, np.int8)
        mask = np.zeros(self.n, np.int8)
        mask[possible] = 1
        return mask

    def _checked_number(self, action: object) -> int:
        try:
            number = operator.index(cast(Any, action))
        except TypeError:
            number = -1
        if not 0 <= number < self.n:
            raise ValueError(f"DiscreteActions: an action is a number from 0 to {self.n - 1}, not {action!r}.")
        return number


_hash = lru_cache(maxsize=16_384)(stable_hash)


def _in_order(actions: Sequence[str], order: int) -> dict[str, int]:
    """Number a list of actions: as it is for order 0, else in an order of its own."""
    if order:
        actions = sorted(actions, key=lambda text: stable_hash(text, order))
    return {text: number for number, text in enumerate(actions)}


def _text_env(env: object, who: str, what: str) -> TextEnv:
    base = getattr(env, "unwrapped", None)
    if not isinstance(base, TextEnv):
        raise ValueError(f"{who} wraps agentgym_envs.TextEnv environments, not {env!r}.")
    space = getattr(env, f"{what}_space")
    if not isinstance(space, TextSpace | Text):
        raise ValueError(f"{who} wraps environments whose {what}s are text, but those of {env} are in {space}.")
    return base


def _checked_count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise ValueError(
            f"DiscreteActions: {name} is an integer of at least {least} and at most {_LARGEST}, not {value!r}."
        )
    return int(value)


def _checked_list(actions: object) -> tuple[str, ...]:
    texts = tuple(actions) if isinstance(actions, Sequence) else ()
    if isinstance(actions, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"DiscreteActions: actions is a list of at least one action, not {actions!r}.")
    if len(set(texts)) < len(texts):
        raise ValueError(f"DiscreteActions: actions names one twice: {list(texts)}.")
    return texts
