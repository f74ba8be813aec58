"""Environments that get the leak harness itself into trouble."""

import os
import signal
import time
from typing import Any

from gymnasium.envs.registration import register, registry

from leak_tests.controls import ControlEnv, Info


class DyingEnv(ControlEnv):
    """Kills its process in episode 30."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        if seed == 30:
            print("the last words of the environment")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)


class HangingEnv(ControlEnv):
    """Never comes back from episode 30."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        if seed == 30:
            time.sleep(3_600)
        return super().reset(seed=seed, options=options)


class UnclosableEnv(ControlEnv):
    """Fails to close."""

    def close(self) -> None:
        raise RuntimeError("the door is stuck")


for _class in (DyingEnv, HangingEnv, UnclosableEnv):
    _id = f"Trouble/{_class.__name__.removesuffix('Env')}-v0"
    if _id not in registry:
        register(id=_id, entry_point=f"{__name__}:{_class.__name__}", disable_env_checker=True)
