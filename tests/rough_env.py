"""A counter whose actions can also do to its own process what goes wrong in long runs."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any

from gymnasium.envs.registration import register, registry

from agentgym_envs.core import Outcome
from tests.toy_env import CounterEnv


class RoughEnv(CounterEnv):
    """Beside `add n`: `sleep s`, `signal n`, `exit n`, `raise text`.

    It also holds a temporary folder, and a process that does not notice the end of others.
    """

    scenario = "Rough"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reset_seconds = 0.0
        self.folder = tempfile.mkdtemp()
        self.server = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(self.reset_seconds)
        return super().reset(**kwargs)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.server.kill()
        self.server.wait(10)
        super().close()

    def _act(self, action: str) -> Outcome:
        verb, _, rest = action.partition(" ")
        if verb == "sleep":
            time.sleep(float(rest))
            return Outcome("Slept.", self._score())
        if verb == "signal":
            os.kill(os.getpid(), int(rest))
            time.sleep(60)
        if verb == "exit":
            os._exit(int(rest))
        if verb == "raise":
            raise LookupError(rest)
        return super()._act(action)

    def worker_pid(self) -> int:
        return os.getpid()

    def child_pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail(self) -> None:
        raise LookupError("on purpose")

    def unpicklable(self) -> Any:
        return threading.Lock()


class OneWayRoughEnv(RoughEnv):
    """Nothing can be replayed, as on a web site."""

    deterministic = False


class FragileEnv(RoughEnv):
    """Its reset ends the process as long as there is a file, which goes with the first time if that is wanted."""

    def __init__(self, *, marker: str, once: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.marker = marker
        self.once = once

    def reset(self, **kwargs: Any) -> Any:
        if os.path.exists(self.marker):
            if self.once:
                os.unlink(self.marker)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**kwargs)


ROUGH_ID, ONE_WAY_ID = "Toy/Rough-v0", "Toy/OneWayRough-v0"
if ROUGH_ID not in registry:
    register(id=ROUGH_ID, entry_point=f"{__name__}:RoughEnv", max_episode_steps=20)
    register(id=ONE_WAY_ID, entry_point=f"{__name__}:OneWayRoughEnv", max_episode_steps=20)
    register(id="Toy/Fragile-v0", entry_point=f"{__name__}:FragileEnv", max_episode_steps=20)
