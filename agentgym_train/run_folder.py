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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import torch
import yaml
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.config import ConfigError, RunConfig, stored_data
from agentgym_train.models import save_model
from agentgym_train.plain_data import build, json_lines
from agentgym_train.trackers import Trackers

_CHECKPOINT = "step-{step:06d}-{phase}"
_LOGS = ("metrics.jsonl", "trajectories.jsonl")


class FolderError(RuntimeError):
    """The run's folder cannot be written to, for instance because the disk is full."""


class Holder(Protocol):
    """An optimiser or a model."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state."""


Phase = Literal["warm_start", "train", "sft", "dpo", "explore", "learn"]


@dataclass
class Progress:
    """How far a run is; all of its state beside the weights and the optimiser.

    Attributes:
        phase: What the run is doing.
        step: Completed steps of that phase.
        evaluated: Names of the evaluations that were done.
        evaluations: The newest row of each kind of evaluation.
        steps_without_update: Training steps in which no group had variance, so that nothing was learned.
        seconds: Seconds spent by phase.
        log_sizes: Bytes of the logs that belong to the state.
        horizons: By scenario, the state of its adaptive horizon.
        late: By scenario, the groups that were left to later steps.
        best: Success rate of the best evaluation during or after training.
        data: Fingerprint of the examples, where a run has some before it begins.
        round: Completed rounds, where a run has rounds.
        learned: Steps that were learned in those.
    """

    phase: Phase = "warm_start"
    step: int = 0
    evaluated: list[str] = field(default_factory=list)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps_without_update: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    log_sizes: dict[str, int] = field(default_factory=dict)
    horizons: dict[str, Any] = field(default_factory=dict)
    late: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    best: float = -1.0
    data: str = ""
    round: int = 0
    learned: int = 0


class RunFolder:
    """Writes and reads one run's folder."""

    def __init__(self, path: Path, config: RunConfig, resume: bool) -> None:
        """Create the folder, or open it again.

        Args:
            path: The folder.
            config: The run's configuration; on resuming the stored one, perhaps with more steps.
            resume: Continue the run that the folder holds.

        Raises:
            ConfigError: If the folder holds a run and `resume` is not set, or holds none or a damaged one and it
                is, or another process is using it, or it cannot be written to.
        """
        self.path = path
        try:
            if resume and not self._config.is_file():
                raise ConfigError(f"there is no run to resume in {path} (no config.yaml).")
            path.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:  # closed again if the folder cannot be used
                _lock(opened.enter_context(open(path / "lock", "w", encoding="utf-8")), path)
                if not resume:
                    self._refuse_another_run()
                self.progress = self._load_progress()
                self._cut_logs(whole_lines=config.command == "eval")
                self._logs: dict[str, IO[str]] = {
                    name: opened.enter_context(open(path / name, "a", encoding="utf-8")) for name in _LOGS
                }
                self._trackers = Trackers(path, config.wandb, config.to_dict(), self._logged())
                opened.callback(self._trackers.close)
                (path / "summary.json").unlink(missing_ok=True)  # it would tell of the run as it was before
                # Last, since with it the folder holds a run.
                _write_atomically(self._config, yaml.safe_dump(config.to_dict(), sort_keys=False))
                self._opened = opened.pop_all()
        except OSError as error:
            raise ConfigError(
                f"run_dir={str(path)!r} cannot be used: {error}. Give a folder that can be written to."
            ) from error

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl; its numbers also go to the trackers, under the row's phase.

        Raises:
            FolderError: If it cannot be written.
        """
        with self._told():
            self._write("metrics.jsonl", row)
            self._trackers.log(row)
        if row["phase"] == "eval":
            self.progress.evaluations[row["name"]] = row
        elif row["phase"] == "train":
            self.progress.steps_without_update += row["tokens/trained"] == 0

    def log_trajectories(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to trajectories.jsonl.

        Raises:
            FolderError: If they cannot be written.
        """
        with self._told():
            for row in rows:
                self._write("trajectories.jsonl", row)

    def save_checkpoint(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, states: Mapping[str, dict[str, Any]]
    ) -> Path:
        """Write a checkpoint of the current progress and remove the earlier ones.

        Args:
            model: The policy.
            tokenizer: Its tokenizer.
            states: Further state dictionaries by name, such as the optimiser's.

        Raises:
            FolderError: If it cannot be written; the earlier one stands.
        """
        target = self.path / "checkpoints" / _CHECKPOINT.format(step=self.progress.step, phase=self.progress.phase)
        with self._told():
            for name, log in self._logs.items():
                log.flush()
                os.fsync(log.fileno())
                self.progress.log_sizes[name] = (self.path / name).stat().st_size
            with _whole(target) as partial:
                save_model(model, partial)
                tokenizer.save_pretrained(partial)
                for name, state in states.items():
                    _save_state(state, partial / f"{name}.pt")
                (partial / "progress.json").write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
            for other in target.parent.iterdir():
                if other != target:
                    shutil.rmtree(other, ignore_errors=True)
        return target

    def save_best(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> None:
        """Write the model of the best evaluation so far, with the evaluation.

        Raises:
            FolderError: If it cannot be written; the earlier one stands.
        """
        with self._told(), _whole(self.path / "best") as partial:
            save_model(model, partial)
            tokenizer.save_pretrained(partial)
            (partial / "evaluation.json").write_text(json.dumps(row, indent=2), encoding="utf-8")

    def save_reference(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the model that the divergence is measured from: the policy after its warm start.

        Raises:
            FolderError: If it cannot be written.
        """
        with self._told(), _whole(self.reference) as partial:
            save_model(model, partial)
            tokenizer.save_pretrained(partial)

    @property
    def reference(self) -> Path:
        """Where `save_reference` writes."""
        return self.path / "reference"

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return newest_checkpoint(self.path)

    def save_failed_batch(self, content: dict[str, Any]) -> str:
        """Write what a step was computing when it failed, for inspection; returns where it is."""
        path = self.path / "failed_batch.json"
        try:
            _write_atomically(path, json.dumps(content))
        except OSError as error:  # why the step failed matters more
            return f"no file, since none could be written ({error})"
        return str(path)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json.

        Raises:
            FolderError: If it cannot be written.
        """
        self.write_text("summary.json", json.dumps(summary, indent=2))

    def write_text(self, name: str, text: str) -> None:
        """Write a file, which appears whole or not at all.

        Raises:
            FolderError: If it cannot be written.
        """
        with self._told():
            _write_atomically(self.path / name, text)

    def abandon(self) -> None:
        """Forget a run that could not begin, so that the corrected command may use the folder."""
        self._config.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the logs and let other processes use the folder."""
        # On a full disk what is still buffered cannot be written; the run has ended by that already.
        with suppress(OSError):
            self._opened.close()

    @property
    def _config(self) -> Path:
        return self.path / "config.yaml"

    def _refuse_another_run(self) -> None:
        if self._config.is_file():
            stored = stored_data(self.path)
            command = stored.get("command", "train") if isinstance(stored, dict) else "train"
            raise ConfigError(
                f"{self.path} already holds a run. Continue it with: agentgym {command} --resume {self.path}; "
                "or give another --run-dir; or remove the folder."
            )
        logs = [name for name in _LOGS if (self.path / name).is_file() and (self.path / name).stat().st_size]
        parts = [name for name in ("checkpoints", "reference") if (self.path / name).exists()]
        if logs or parts:
            raise ConfigError(
                f"{self.path} holds {', '.join(parts + logs)} of another run, but no config.yaml. "
                "Give another --run-dir, or remove the folder."
            )

    def _load_progress(self) -> Progress:
        checkpoint = self.checkpoint
        if checkpoint is None:
            return Progress()
        file = checkpoint / "progress.json"
        try:
            progress: Progress = build(Progress, json.loads(file.read_text(encoding="utf-8")), "")
        except (OSError, ValueError) as error:
            raise _damaged(file, error) from error
        return progress

    def _cut_logs(self, whole_lines: bool) -> None:
        """Cut the logs back to what belongs to the checkpoint; of a run without checkpoints, to whole lines."""
        for name in _LOGS:
            file, kept = self.path / name, self.progress.log_sizes.get(name, 0)
            size = file.stat().st_size if file.exists() else 0
            if whole_lines and size:
                kept = file.read_bytes().rfind(b"\n") + 1
            if size < kept:
                raise ConfigError(
                    f"{file} has {size} bytes, but {kept} when {self.checkpoint} was written: it was shortened since. "
                    "Put it back, or start again in another --run-dir."
                )
            if size > kept:
                os.truncate(file, kept)

    def _logged(self) -> Iterator[Mapping[str, Any]]:
        """The rows of metrics.jsonl that belong to the checkpoint; without lines that have been damaged."""
        for row in json_lines(self.path / "metrics.jsonl"):
            if row is not None and {"phase", "step", "time"} <= row.keys():
                yield row

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what a failed write means for the run."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            stands = f"the checkpoint {self.checkpoint} stands" if self.checkpoint else "there is no checkpoint yet"
            raise FolderError(
                f"{self.path} cannot be written to ({' '.join(str(error).split())}); {stands}. Free space on the disk, "
                "then run the command again with --resume."
            ) from error

    def _write(self, name: str, row: dict[str, Any]) -> None:
        log = self._logs[name]
        log.write(json.dumps(row, ensure_ascii=False) + "\n")
        log.flush()


def _save_state(state: dict[str, Any], file: Path) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:  # of its writer, which hides the system's reason
        raise OSError(f"{file.name}: {error}") from error


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Fill a folder under another name, and give it its own when all is on the disk.

    One of the same name stays, under a name that is found, until the new one is in place.
    """
    partial = target.with_name(f".{target.name}.partial")  # which no search for checkpoints finds
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        _sync_folder(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replaced = target.with_name(f"{target.name}-replaced")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    partial.rename(target)
    _sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def newest_checkpoint(path: Path) -> Path | None:
    """The newest checkpoint in a run's folder."""
    return max((path / "checkpoints").glob("step-*"), key=_time_written, default=None)


def load_state(holder: Holder, checkpoint: Path, name: str, device: torch.device) -> None:
    """Put a state of a checkpoint into an optimiser or a model.

    Raises:
        ConfigError: If the file is missing, damaged or of another model.
    """
    file = checkpoint / f"{name}.pt"
    try:
        holder.load_state_dict(torch.load(file, map_location=device, weights_only=True))
    except Exception as error:  # a damaged archive can raise nearly anything
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConfigError(
        f"{file} cannot be read, so the run cannot be continued ({reason}). "
        "Put the checkpoint back from a copy, or start again in another --run-dir."
    )


def _time_written(checkpoint: Path) -> int:
    """When a checkpoint was completed; 0 for one that lacks its progress."""
    progress = checkpoint / "progress.json"
    return progress.stat().st_mtime_ns if progress.is_file() else 0


def _lock(file: IO[str], path: Path) -> None:
    """Lock a folder by a file in it, which the system unlocks when the process ends, however it does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"another process is training in {path}; wait for it, or give another --run-dir.") from error


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    _sync(partial)
    os.replace(partial, path)


def _sync_folder(path: Path) -> None:
    """Wait until a folder is on the disk; else a power cut could leave a new name without its content."""
    for entry in (*path.rglob("*"), path):
        _sync(entry)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
