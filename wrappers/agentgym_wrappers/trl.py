"""A text environment as TRL's `environment_factory` wants it: a class with one tool for each verb.

    trainer = GRPOTrainer(model, environment_factory=make_trl_environment("AgentGym/TextCraft-Depth1-v0"), ...)

TRL itself is not imported here. `docs/third-party.md` has a whole program, and the lossless way for models that
write actions as text (`rollout_func`), which needs none of this.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable
from typing import Any, cast, get_type_hints

import gymnasium

from agentgym_envs import RefusedAction, TextEnv
from agentgym_envs.verbs import Verb, template
from agentgym_wrappers.horizon import FixedHorizon, HorizonCurriculum

# A chat template with tools for models that were trained on ChatML (`<|im_start|>role`). Each message is written by
# itself, so a longer conversation begins with the shorter one, which TRL requires.
CHATML_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'You have these tools:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\nCall one by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' + (function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# How transformers (5.13 and newer) reads the tool calls of that template out of a reply.
CHATML_TOOLS_RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def make_trl_environment(env_id: str, *, turns: int | None = None, **options: Any) -> type[Any]:
    """Make a class for TRL's `environment_factory`.

    Its `reset` takes the columns of the dataset's row: `seed`, `task` (an id or data index) and `horizon` (the turns
    of this episode), of which it needs a seed or a task, so that all members of a group play the same episode. It
    returns the task statement, which TRL puts behind the prompt. Each verb of the scenario is a tool. A call with
    wrong arguments spends a turn, as any bad action does. After the end of the episode tools raise ValueError,
    which TRL shows to the model; nothing else tells TRL that the episode is over. `get_reward()` is the sum of the
    episode's rewards.

    Args:
        env_id: Id of a text environment.
        turns: Turns after which an episode is cut; by default the id's limit.
        **options: For `gymnasium.make`, e.g. `split="test"`.

    Returns:
        A class without constructor arguments. Instances close their environment when they are collected.

    Raises:
        ValueError: If the id's environment is no `TextEnv`, or `turns` is no limit.
        gymnasium.error.Error: If there is no such id.
    """
    probe = gymnasium.make(env_id, **options)
    try:
        base = probe.unwrapped
        if not isinstance(base, TextEnv):
            raise ValueError(f"make_trl_environment takes ids of agentgym_envs.TextEnv environments, not {env_id!r}.")
        verbs = base.verbs
        limit = turns if turns is not None else probe.spec.max_episode_steps if probe.spec else None
    finally:
        probe.close()
    schedule = FixedHorizon(100 if limit is None else limit)

    def make() -> HorizonCurriculum[Any, Any]:
        return HorizonCurriculum(gymnasium.make(env_id, **options), schedule)

    members: dict[str, Any] = {verb.__name__: _tool(verb) for verb in verbs}
    members |= {"_make": staticmethod(make), "__doc__": f"{env_id} for TRL: one tool for each verb."}
    return type(base.scenario, (_Episode,), members)


class _Episode:
    """What the classes have in common. TRL takes every method without a leading underscore for a tool."""

    _make: Callable[[], gymnasium.Env[str, str]]

    def __init__(self) -> None:
        self._env = self._make()
        weakref.finalize(self, self._env.close)  # TRL never closes its environments
        self._reward = 0.0
        self._over = "no episode was begun"

    def reset(self, **row: Any) -> str:
        """Start the episode that a row of the dataset describes.

        Args:
            **row: The row's columns; `seed`, `task` and `horizon` are used.

        Returns:
            The task statement.

        Raises:
            ValueError: If there is neither a seed nor a task.
        """
        given = {name: row[name] for name in ("seed", "task", "horizon") if row.get(name) is not None}
        if "seed" not in given and "task" not in given:
            raise ValueError(
                "make_trl_environment: the dataset's row has neither a 'seed' nor a 'task'; without one the members of "
                f"a group would play different episodes. Add a column; the row has {', '.join(row) or 'none'}."
            )
        seed = given.pop("seed", 0)
        observation, _ = self._env.reset(seed=seed, options=given)
        self._reward, self._over = 0.0, ""
        return f"\n\n{observation}"

    def get_reward(self) -> float:
        """Return the sum of the episode's rewards so far."""
        return self._reward

    def _act(self, action: str) -> str:
        if self._over:
            raise ValueError(f"Game over: {self._over}.")
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._reward += float(reward)
        if terminated or truncated:
            self._over = f"the episode has ended ({info.get('end', 'turn limit')})"
        return observation


def _tool(verb: Verb) -> Callable[..., str]:
    """Make a method of a verb, with the signature, types and docstring that tool schemas are made from."""
    signature = inspect.signature(verb)

    def tool(self: _Episode, *args: Any, **kwargs: Any) -> str:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            reason = f"Could not call {verb.__name__}: {error}. Its action is {template(verb)}."
            return self._act(RefusedAction("", reason))
        return self._act(verb(*bound.args, **bound.kwargs))

    tool.__name__ = tool.__qualname__ = verb.__name__
    tool.__doc__ = _docstring(verb)
    tool.__annotations__ = get_type_hints(verb)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    with_self = signature.replace(parameters=[receiver, *signature.parameters.values()])
    cast(Any, tool).__signature__ = with_self
    return tool


def _docstring(verb: Verb) -> str:
    """The verb's docstring without its examples: schemas have no section for them, and they are no tool calls."""
    return re.split(r"\n\s*Examples:\n", inspect.getdoc(verb) or "", maxsplit=1)[0]
