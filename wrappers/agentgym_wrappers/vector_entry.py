"""Entry points of `gymnasium.make_vec`, which does not tell them the id: here an entry point's name is the id.

`agentgym_wrappers.vector_entry:AgentGym/TextCraft-v0` makes a `SubprocVectorEnv` of that id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agentgym_wrappers.vector import SubprocVectorEnv


def __getattr__(id: str) -> Callable[..., SubprocVectorEnv]:
    """Return the entry point of an id."""
    if "/" not in id:
        raise AttributeError(f"module {__name__!r} has no attribute {id!r}")
    return partial(SubprocVectorEnv.make, id)
