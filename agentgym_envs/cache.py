"""The cache folder, and folders in it that are built once whatever number of processes ask for them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD_LIMIT_S = 6 * 3600.0
"""How long another process may take to build before those that wait for it give up."""
MANIFEST = "manifest.json"
"""What a folder was when it was built: {name of a file: [bytes, CRC-32, or null for a large file]}."""
CHECKED_BYTES = 64_000_000
"""Files up to this size are compared by content whenever they are opened (1 ms for 1 MB), larger ones by size."""


def cache_dir(*parts: str) -> Path:
    """A folder in the one outside the checkout that is written to: `AGENTGYM_CACHE`, or the user's cache folder."""
    if os.environ.get("AGENTGYM_CACHE"):
        return Path(os.environ["AGENTGYM_CACHE"], *parts)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "agentgym", *parts)


def make_folder(folder: Path) -> Path:
    """Make a folder of the cache, unless it is there.

    Raises:
        ValueError: If it cannot be made.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say where writing failed, and what to do about it.

    Raises:
        ValueError: In place of an `OSError`: no space, no permission and the like.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error}); free space there or name another place with AGENTGYM_CACHE."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a small file of the cache; readers see it complete or not at all.

    Raises:
        ValueError: If it cannot be written.
    """
    make_folder(path.parent)
    with writing(path), tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
        file.close()
        Path(file.name).replace(path)


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Make a folder unless it exists as it was built. It appears complete or not at all.

    A damaged one is built anew; what others have put into it since, such as the indexes in a corpus, is kept.

    Args:
        target: The folder.
        build: Fills the empty folder that it is given, which then becomes `target`.

    Raises:
        TimeoutError: If another process is building it for longer than `BUILD_LIMIT_S`.
        ValueError: If the cache cannot be written; a damaged folder that stays is named.
    """
    found = damage(target)
    if not found:
        return
    make_folder(target.parent)
    try:
        with locked(target.parent / f".{target.name}.lock"):
            if damage(target):
                _build(target, build)
    except TimeoutError:
        raise
    except OSError as error:
        if not target.exists():
            with writing(target):
                raise
        raise ValueError(
            f"{target} is damaged ({found}) and cannot be built anew ({error}). Delete this folder where it can be "
            "written, or name another place with AGENTGYM_CACHE."
        ) from error


def damage(folder: Path) -> str:
    """What distinguishes a folder from what `build_once` made; empty if nothing does."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, checksum) in manifest.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes, not {size}"
            if checksum is not None and _checksum(folder / name) != checksum:
                return f"{name} has other content than when it was built"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return str(error)
    return ""


def _build(target: Path, build: Callable[[Path], None]) -> None:
    for left in target.parent.glob(f".{target.name}-*"):  # of a process that was killed: we have its lock
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    removed = partial.with_name(f"{partial.name}-removed")
    try:
        build(partial)
        if not (partial / MANIFEST).exists():
            write_manifest(partial)
        partial.chmod(0o755)  # mkdtemp lets only the owner in
        if target.exists():
            for entry in target.iterdir():
                new = partial / entry.name
                # Indexes in a corpus, their locks, unfinished ones.
                if (entry.is_dir() or entry.suffix in (".lock", ".part")) and not new.exists():
                    entry.rename(new)
            target.rename(removed)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(removed, ignore_errors=True)


def write_manifest(folder: Path) -> None:
    """Write down what the files of a folder are, for `damage`; `build_once` does so unless its `build` has."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".lock"]
    sizes = {path: path.stat().st_size for path in files}
    manifest = {path.name: [size, _checksum(path) if size <= CHECKED_BYTES else None] for path, size in sizes.items()}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


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
