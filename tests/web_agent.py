"""Acting on web pages in tests, on elements that are named by their lines; and whether processes run."""

import re
import time
from pathlib import Path

from agentgym_envs.webarena.env import WebArenaEnv


def find(env: WebArenaEnv, what: str) -> str:
    """The id of the first element whose line begins like this."""
    match = re.search(rf"^ *\[(\d+)\] {re.escape(what)}", env._observation, re.MULTILINE)
    assert match is not None, f"{what} is not in\n{env._observation}"
    return match[1]


def act(env: WebArenaEnv, action: str, what: str = "") -> str:
    """Carry out an action, on an element that is named by its line; return the observation."""
    verb, _, rest = action.partition(" ")
    observation, *_, info = env.step(f"{verb} [{find(env, what)}] {rest}" if what else action)
    assert info["valid_action"], observation
    return observation


def refused(env: WebArenaEnv, action: str) -> str:
    """Carry out an action that is refused; return what is said."""
    observation, reward, terminated, truncated, info = env.step(action)
    assert not info["valid_action"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "end" not in info
    return observation


def running(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 30.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + seconds
    while running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
