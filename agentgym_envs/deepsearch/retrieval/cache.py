"""The cache folder, and folders in it that are built once whatever number of processes ask for them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD_LIMIT_S = 6 * 3600.0
"""How long another process may take to build before those that wait for it give up."""


def cache_dir() -> Path:
    """DeepSearch's part of the cache: `deepsearch` in `AGENTGYM_CACHE`, or in the user's cache folder."""
    if os.environ.get("AGENTGYM_CACHE"):
        return Path(os.environ["AGENTGYM_CACHE"]) / "deepsearch"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym" / "deepsearch"


def make_folder(folder: Path) -> Path:
    """Make a folder of the cache, unless it is there.

    Raises:
        ValueError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the cache folder {folder} cannot be made ({error}); name another place with AGENTGYM_CACHE."
        ) from error
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a small file of the cache; readers see it complete or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=make_folder(path.parent), delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(path)


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Make a folder unless it exists. It appears complete or not at all.

    Args:
        target: The folder.
        build: Fills the empty folder that it is given, which then becomes `target`.

    Raises:
        TimeoutError: If another process is building it for longer than `BUILD_LIMIT_S`.
        ValueError: If the cache cannot be written.
    """
    if target.exists():
        return
    with locked(make_folder(target.parent) / f".{target.name}.lock"):
        if target.exists():
            return
        for left in target.parent.glob(f".{target.name}-*"):  # of a process that was killed: we have its lock
            shutil.rmtree(left, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(partial)
            partial.chmod(0o755)  # mkdtemp lets only the owner in
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the system frees it when its holder ends, however it ends."""
    deadline = time.monotonic() + BUILD_LIMIT_S
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held {path} for {BUILD_LIMIT_S:.0f} s; end it, then try again."
                    ) from None
                time.sleep(0.05)
        yield
