"""Where a run's numbers can be watched: TensorBoard always, Weights & Biases if a project is named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from agentgym_train.config import ConfigError


class Trackers:
    """Takes the rows of metrics.jsonl and passes their numbers on."""

    def __init__(self, path: Path, project: str, config: Mapping[str, Any], purge_step: int | None) -> None:
        """Open them.

        Args:
            path: The run's folder; both write below it.
            project: Project of Weights & Biases; empty leaves it out. Whether it sends anything is its own setting
                (`wandb login`, or WANDB_MODE=offline and `wandb sync` later).
            config: The run's configuration, to be shown beside the numbers.
            purge_step: First step that will be logged again, for a run that goes on.

        Raises:
            ConfigError: If the package is missing or refuses to begin.
        """
        self._wandb = _begin_wandb(path, project, config) if project else None
        self._board = SummaryWriter(str(path / "tensorboard"), purge_step=purge_step)

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on the numbers of a row, under the names of its phase."""
        phase, step = row["phase"], row["step"]
        numbers = {
            f"{phase}/{name}": value
            for name, value in row.items()
            if name not in ("step", "time") and isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({**numbers, f"{phase}/step": step})

    def close(self) -> None:
        """Write what is buffered and end the processes that a tracker has started."""
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _begin_wandb(path: Path, project: str, config: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"wandb={project!r} needs the package wandb, which is not installed; run: "
            "pip install 'agentgym-suite[wandb]', or leave the option out."
        ) from error
    try:
        run = wandb.init(
            project=project,
            name=path.name,
            # A run that goes on is found again by its folder.
            id=hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(path),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"wandb={project!r}: {' '.join(str(error).split())} Run `wandb login`, or set WANDB_MODE=offline and send "
            "the run later with `wandb sync`."
        ) from error
    for phase in ("warm_start", "train", "sft", "dpo", "explore", "learn", "eval"):  # each counts its steps by itself
        run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
    return run
