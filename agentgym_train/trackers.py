"""Where a run's numbers can be watched: TensorBoard always, Weights & Biases if a project is named."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from agentgym_train.config import ConfigError


class Trackers:
    """Takes the rows of metrics.jsonl and passes their numbers on."""

    def __init__(
        self, path: Path, project: str, config: Mapping[str, Any], logged: Iterable[Mapping[str, Any]]
    ) -> None:
        """Open them.

        Args:
            path: The run's folder; both write below it.
            project: Project of Weights & Biases; empty leaves it out. Whether it sends anything is its own setting
                (`wandb login`, or WANDB_MODE=offline and `wandb sync` later).
            config: The run's configuration, to be shown beside the numbers.
            logged: Rows up to the checkpoint of a run that goes on. TensorBoard's curves are drawn anew from them:
                it could cut them at a step, but each phase counts its steps by itself.

        Raises:
            ConfigError: If the package is missing or refuses to begin.
        """
        self._wandb = _begin_wandb(path, project, config) if project else None
        folder = path / "tensorboard"
        if folder.is_dir():
            shutil.rmtree(folder)
        self._board = SummaryWriter(str(folder), purge_step=0)  # one that is watching forgets what it has read
        for row in logged:
            self._draw(row)

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on the numbers of a row, under the names of its phase."""
        numbers = self._draw(row)
        if self._wandb is not None:
            self._wandb.log({**numbers, f"{row['phase']}/step": row["step"]})

    def _draw(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Put the numbers of a row into TensorBoard's file; returns them by the names that they have there."""
        numbers = {
            f"{row['phase']}/{name}": value
            for name, value in row.items()
            if name not in ("step", "time") and isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, value in numbers.items():
            self._board.add_scalar(name, value, row["step"], row["time"])
        return numbers

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
