"""How a model is asked to act: agents, each a class with a few small methods (`docs/agents.md`).

An agent adds to prompts, and says which replies are actions. It keeps nothing: each method is a function of what
it is given, and one object serves all episodes.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs import RefusedAction
from agentgym_train.config import ConfigError
from agentgym_wrappers import parse_reply


class Agent:
    """The agent `direct`, and the base of the others: prompts are the environment's own, every reply is an action.

    Attributes:
        formats: Reply formats that the action parser accepts (see `agentgym_wrappers.ActionParser`); empty leaves
            them to the run's configuration.
    """

    formats: Sequence[str] = ()

    def instruction(self, given: str) -> str:
        """Return the system message.

        Args:
            given: The environment's instruction: its action format.
        """
        return given

    def opening(self, statement: str, notes: Sequence[str]) -> str:
        """Return the first user message.

        Args:
            statement: The task statement, which is the environment's first observation.
            notes: The reflections on earlier trials, oldest first.
        """
        del notes
        return statement

    def aside(self, replies: Sequence[str]) -> str | None:
        """Say before each reply whether it will be no action, for instance a plan.

        Such a reply is sampled and trained on like any other. The environment does not see it, and it takes no turn.

        Args:
            replies: The replies of this trial so far.

        Returns:
            What the user says after the coming reply, or None if that is an action.
        """
        del replies
        return None

    def reflection(self, trial: int) -> str | None:
        """Ask, after a failed trial, for what is to be remembered in the next one.

        Args:
            trial: Number of the failed trial, from 1.

        Returns:
            The question; its reply becomes a note and the same task is tried again. None ends the episode.
        """
        del trial
        return None

    def demonstration(self, actions: Sequence[str]) -> list[str]:
        """Return the replies of a teacher who takes these actions, each action's reply in its place.

        Needed for warm starts and for replies that are constrained to the available actions.

        Args:
            actions: All actions of an episode, in order; or a single one.
        """
        return list(actions)


class ReAct(Agent):
    """A thought before each action, in one reply (after arXiv 2210.03629)."""

    formats = ("react",)

    def instruction(self, given: str) -> str:
        """Add the form of a reply."""
        form = "Thought: what you make of the last observation and what should come next\nAction: one action"
        return f"{given}\n\nThink before you act. Write each reply in this form:\n{form}"

    def demonstration(self, actions: Sequence[str]) -> list[str]:
        """Write the actions without thoughts, which a teacher does not have."""
        return [f"Action: {action}" for action in actions]


class PlanThenAct(Agent):
    """The first reply is a plan, which stays in the context; the following ones are actions."""

    def opening(self, statement: str, notes: Sequence[str]) -> str:
        """Ask for the plan."""
        del notes
        return f"{statement}\n\nDo not act yet. First write a plan: the steps that you will take, one on each line."

    def aside(self, replies: Sequence[str]) -> str | None:
        """Take the first reply as the plan."""
        return None if replies else "Now act, one action in each reply. Depart from the plan where it does not work."

    def demonstration(self, actions: Sequence[str]) -> list[str]:
        """Write all actions down as the plan, then take them."""
        return ["\n".join(f"{number}. {action}" for number, action in enumerate(actions, start=1)), *actions]


class ReflectAfterFailure(Agent):
    """After a failed trial the model says what went wrong, and tries the task again with that in the prompt.

    (After Reflexion, arXiv 2303.11366.) A trial has failed when the episode is over and the environment's `success`
    is False, so the agent is told more than one that has a single trial.
    """

    def __init__(self, trials: int = 3) -> None:
        """Set the largest number of trials, the first one included.

        Raises:
            ValueError: If it is less than 2.
        """
        if trials < 2:
            raise ValueError(f"trials={trials} is not accepted; give at least 2 (agent direct has one)")
        self.trials = trials

    def opening(self, statement: str, notes: Sequence[str]) -> str:
        """Add the notes."""
        if not notes:
            return statement
        listed = "\n".join(f"{number}. {note.strip()}" for number, note in enumerate(notes, start=1))
        return f"{statement}\n\nYou have tried this task before and failed. After each trial you noted:\n{listed}"

    def reflection(self, trial: int) -> str | None:
        """Ask while there are trials left."""
        if trial >= self.trials:
            return None
        return (
            "The trial is over, and the task is not solved. Do not act now. In a few sentences, say what went wrong "
            "and what you will do differently when you start again."
        )


AGENTS: dict[str, type[Agent]] = {
    "direct": Agent,
    "react": ReAct,
    "plan-then-act": PlanThenAct,
    "reflect-after-failure": ReflectAfterFailure,
}


def load_agent(name: str, options: Mapping[str, Any] | None = None) -> Agent:
    """Make an agent.

    Args:
        name: One of `AGENTS`, or `module:attribute` for a subclass of `Agent` of your own.
        options: Keyword arguments of its class.

    Raises:
        ConfigError: If there is no such agent, or it does not take the options.
    """
    kind = AGENTS.get(name) or _imported(name)
    try:
        return kind(**(options or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"agent.options={dict(options or {})!r} of agent.name={name!r}: {error}.") from error


def check_formats(agent: Agent, formats: Sequence[str]) -> None:
    """Check that the action parser finds the action in the replies that are written for the model.

    Args:
        agent: Writes them, for warm starts and for constrained replies.
        formats: What the parser accepts.

    Raises:
        ConfigError: If it would not.
    """
    action = "look around"
    reply = agent.demonstration([action])[-1]
    found = parse_reply(reply, formats)
    if isinstance(found, RefusedAction) or found != action:
        raise ConfigError(
            f"the agent {type(agent).__name__} writes the action {action!r} as {reply!r}, which env.formats="
            f"{list(formats)} does not accept; add a format, or override Agent.demonstration."
        )


def _imported(name: str) -> type[Agent]:
    module, separator, attribute = name.partition(":")
    if not separator:
        near = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"agent.name={name!r} is unknown; accepted are {', '.join(AGENTS)}, and module:attribute for a class of "
            f"your own.{hint}"
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"agent.name={name!r} cannot be imported ({error}); give module:attribute, with the module on Python's "
            "path (PYTHONPATH)."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise ConfigError(f"agent.name={name!r} is {kind!r}; give a subclass of agentgym_train.agents.Agent.")
    return kind
