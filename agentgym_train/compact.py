"""`agentgym compact`: a language model of a few million parameters, made here in minutes.

PyTorch and transformers are imported when the work begins, so that help and wrong usage answer at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from agentgym_envs.cache import build_once, cache_dir, make_folder
from agentgym_train.config import ConfigError
from agentgym_train.stop import StoppedAtOnce, signals_stop_at_once
from agentgym_train.terminal import Terminal, say_error

HEAD_SIZE = 32
LEAST_VOCABULARY = 300  # bytes, special tokens and a few merges


@dataclass
class CompactConfig:
    """Make a compact model: a small Llama with a tokenizer of its own, taught by a scenario's oracle.

    It is an ordinary Hugging Face folder: agentgym train --model.path FOLDER. The oracle plays tasks of the training
    split. Each episode that the model is trained on retells one of these with other names, so it learns to look
    names up in its context and has read no task as the scenario words it.
    """

    env: str = "AgentGym/TextCraft-Depth1-v0"
    """Registered environment id."""
    out: str = ""
    """Folder to write; by default one in the cache, which is kept for the next time."""
    seed: int = 0
    """Seed; on one thread the same one gives the same model to the last bit."""
    echo_steps: int = 3000
    """Most steps in which it first learns to repeat tokens that it has read; it goes on once it can."""
    echo_lr: float = 3e-3
    """Learning rate of these steps."""
    episodes: int = 6000
    """Retold episodes that the model is trained on, each once."""
    oracle_episodes: int = 400
    """Episodes that the oracle plays."""
    vocabulary: int = 1024
    """Tokens."""
    hidden_size: int = 128
    """Width of the model, a multiple of 32."""
    layers: int = 2
    """Layers."""
    batch_size: int = 4
    """Episodes per optimiser step."""
    lr: float = 2e-3
    """Largest learning rate on episodes; it rises over a twentieth of the steps, then falls to a tenth."""

    def check(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: At the first one that is not accepted.
        """
        least = {"echo_steps": 0, "episodes": self.batch_size, "oracle_episodes": 1, "layers": 1, "batch_size": 1}
        for name, number in {**least, "vocabulary": LEAST_VOCABULARY, "hidden_size": HEAD_SIZE}.items():
            if getattr(self, name) < number:
                raise ConfigError(f"{name}={getattr(self, name)} is not accepted; give at least {number}.")
        if self.hidden_size % HEAD_SIZE:
            raise ConfigError(f"hidden_size={self.hidden_size} is not accepted; give a multiple of {HEAD_SIZE}.")
        for name, rate in {"lr": self.lr, "echo_lr": self.echo_lr}.items():
            if not 0 < rate < math.inf:
                raise ConfigError(f"{name}={rate} is not accepted; give more than 0, but finite.")


def compact_path(config: CompactConfig, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of the model that a configuration describes; it is made in the cache if it is not there.

    Args:
        config: What to make; `out` has no influence.
        say: Told about progress.

    Raises:
        ConfigError: If a number or the environment is not accepted.
        ValueError: If the cache cannot be written.
    """
    config.check()
    described = {name: value for name, value in asdict(config).items() if name != "out"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:8]
    title = config.env.rpartition("/")[2].lower()
    folder = cache_dir("models", f"compact-{title}-{digest}")

    def build(target: Path) -> None:
        from agentgym_train.compact_model import write_compact

        write_compact(config, target, say)

    build_once(folder, build)
    return folder


def compact_command(arguments: list[str]) -> int:
    """`agentgym compact`."""
    config = tyro.cli(CompactConfig, prog="agentgym compact", args=arguments)
    terminal = Terminal()
    try:
        with signals_stop_at_once():
            folder = _write_out(config, terminal.say) if config.out else compact_path(config, terminal.say)
    except (ValueError, TimeoutError) as error:
        say_error(f"error: {error}")
        return 1
    except StoppedAtOnce as stop:
        say_error("stopped; no model was written")
        return stop.exit_code
    terminal.say(f"model: {folder}")
    terminal.say(f"train it with: agentgym train --env.id {config.env} --model.path {folder}")
    return 0


def _write_out(config: CompactConfig, say: Callable[[str], None]) -> Path:
    """Write the model to the folder that was named; it appears complete or not at all."""
    from agentgym_train.compact_model import write_compact

    config.check()
    folder = Path(config.out).expanduser()
    if folder.exists():
        raise ConfigError(f"out={config.out!r} exists already; give another folder, or remove it.")
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=make_folder(folder.parent)))
    try:
        write_compact(config, partial, say)
        partial.chmod(0o755)  # mkdtemp lets only the owner in
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
