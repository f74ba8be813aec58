"""A run's folder: configuration, metrics, trajectories, checkpoints, summary.

Checkpoints are folders that appear whole or not at all: each is written under another name and renamed.
Each remembers how long the two logs were, and resuming cuts them back to that, so that a log never
holds a step twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from torch.utils.tensorboard import SummaryWriter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.config import Config, ConfigError

_CHECKPOINT = "step-{step:06d}-{phase}"
_LOGS = ("metrics.jsonl", "trajectories.jsonl")


@dataclass
class Progress:
    """How far a run is; all of its state beside the weights and the optimiser.

    Attributes:
        phase: `"warm_start"` or `"train"`.
        step: Completed steps of that phase.
        evaluated: Names of the evaluations that were done.
        seconds: Seconds spent by phase.
        log_sizes: Bytes of the logs that belong to the state.
    """

    phase: str = "warm_start"
    step: int = 0
    evaluated: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    log_sizes: dict[str, int] = field(default_factory=dict)


class RunFolder:
    """Writes and reads one run's folder."""

    def __init__(self, path: Path, config: Config, resume: bool) -> None:
        """Create the folder, or open it again.

        Args:
            path: The folder.
            config: The run's configuration; on resuming the stored one, perhaps with more steps.
            resume: Continue the run that the folder holds.

        Raises:
            ConfigError: If the folder holds a run and `resume` is not set, or holds none and it is, or
                another process is using it.
        """
        self.path = path
        stored = path / "config.yaml"
        if resume and not stored.is_file():
            raise ConfigError(f"there is no run to resume in {path} (no config.yaml).")
        if not resume and stored.is_file():
            raise ConfigError(
                f"{path} already holds a run. Continue it with: agentgym train --resume {path}; "
                "or give another --run-dir; or remove the folder."
            )
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        _write_atomically(stored, yaml.safe_dump(config.to_dict(), sort_keys=False))
        (path / "summary.json").unlink(missing_ok=True)  # it would tell of the run as it was before
        self.progress = self._load_progress()
        for name in _LOGS:
            with open(path / name, "ab") as log:
                log.truncate(self.progress.log_sizes.get(name, 0))
        self._logs: dict[str, IO[str]] = {name: open(path / name, "a", encoding="utf-8") for name in _LOGS}
        # Steps of a resumed run replace those that were logged after the checkpoint.
        self._board = SummaryWriter(str(path / "tensorboard"), purge_step=self.progress.step if resume else None)

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl; its numbers also go to TensorBoard, under the row's phase."""
        self._write("metrics.jsonl", row)
        for name, value in row.items():
            if name not in ("step", "time") and isinstance(value, int | float) and not isinstance(value, bool):
                self._board.add_scalar(f"{row['phase']}/{name}", value, row["step"])

    def log_trajectories(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to trajectories.jsonl."""
        for row in rows:
            self._write("trajectories.jsonl", row)

    def save_checkpoint(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, optimiser: torch.optim.Optimizer
    ) -> Path:
        """Write a checkpoint of the current progress and remove the earlier ones."""
        for name, log in self._logs.items():
            log.flush()
            self.progress.log_sizes[name] = (self.path / name).stat().st_size
        target = self.path / "checkpoints" / _CHECKPOINT.format(step=self.progress.step, phase=self.progress.phase)
        partial = target.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        torch.save(optimiser.state_dict(), partial / "optimiser.pt")
        (partial / "progress.json").write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
        if target.exists():  # of the same step: it stays, under a name that is found, until the new one is in place
            replaced = target.with_name(f"{target.name}-replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        partial.rename(target)
        for other in target.parent.iterdir():
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
        return target

    def save_reference(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the model that the divergence is measured from: the policy after its warm start."""
        partial = self.path / "reference.partial"
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        shutil.rmtree(self.reference, ignore_errors=True)
        partial.rename(self.reference)

    @property
    def reference(self) -> Path:
        """Where `save_reference` writes."""
        return self.path / "reference"

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        found = [path for path in (self.path / "checkpoints").glob("step-*") if (path / "progress.json").is_file()]
        return max(found, key=lambda path: (path / "progress.json").stat().st_mtime_ns, default=None)

    def save_failed_batch(self, content: dict[str, Any]) -> Path:
        """Write what a step was computing when it failed, for inspection."""
        path = self.path / "failed_batch.json"
        _write_atomically(path, json.dumps(content))
        return path

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The newest evaluation of each name."""
        rows = map(json.loads, (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return {row["name"]: row for row in rows if row["phase"] == "eval"}

    def steps_without_update(self) -> int:
        """Number of training steps in which no group had variance, so that nothing was learned."""
        rows = map(json.loads, (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return sum(row["phase"] == "train" and row["groups/zero_variance"] == row["groups/total"] for row in rows)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        _write_atomically(self.path / "summary.json", json.dumps(summary, indent=2))

    def abandon(self) -> None:
        """Forget a run that could not begin, so that the corrected command may use the folder."""
        (self.path / "config.yaml").unlink()

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()
        self._board.close()
        self._lock.close()

    def _load_progress(self) -> Progress:
        checkpoint = self.checkpoint
        if checkpoint is None:
            return Progress()
        return Progress(**json.loads((checkpoint / "progress.json").read_text(encoding="utf-8")))

    def _write(self, name: str, row: dict[str, Any]) -> None:
        log = self._logs[name]
        log.write(json.dumps(row, ensure_ascii=False) + "\n")
        log.flush()


def _locked(path: Path) -> IO[str]:
    """Open the folder's lock file, which the system unlocks when the process ends, however it does."""
    lock = open(path / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(f"another process is training in {path}; wait for it, or give another --run-dir.") from error
    return lock


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
