"""The pristine state in the cache folder: which one belongs to this code, and making it once."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from agentgym_envs.cache import build_once, cache_dir
from agentgym_envs.core import Fault

BUILD_SECONDS = 900.0
PACKAGES = ("Django", "django-oscar", "django-machina", "django-mptt", "django-treebeard", "Trac", "waitress")
_MISSING = "the embedded sites need packages that are not installed ({0}): pip install 'agentgym-suite[webarena]'"


def pristine_folder() -> Path:
    """The folder of the pristine state; it is made first where the cache does not have it, which is told on stderr.

    Raises:
        ModuleNotFoundError: If a package is missing.
        Fault: If git is missing or the state cannot be made.
        ValueError: If the cache folder cannot be written.
    """
    if shutil.which("git") is None:
        raise Fault("start", "the embedded sites show git repositories, and git is not installed; install it.")
    folder = cache_dir("webarena", "sites", data_hash())
    build_once(folder, _build)
    return folder


@cache
def data_hash() -> str:
    """Names the content: a hash of the code that makes it and of the versions of the packages that it is made with.

    Raises:
        ModuleNotFoundError: If a package is missing.
    """
    digest = hashlib.sha256(f"sqlite {sqlite3.sqlite_version}\n".encode())
    for package in PACKAGES:
        try:
            digest.update(f"{package} {metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError as error:
            raise ModuleNotFoundError(_MISSING.format(package)) from error
    here = Path(__file__).parent
    makers = [here / name for name in ("accounts.py", "build.py", "determinism.py", "django_project/settings.py")]
    for path in sorted([*makers, *(here / "content").glob("*.py")]):
        digest.update(f"{path.relative_to(here).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def environment() -> dict[str, str]:
    """Environment variables for the processes that run the sites: nothing of the user's changes what they show."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO_", "TRAC_", "GIT_", "LC_", "PYTHONHASHSEED", "PYTHONWARNINGS"))
    }
    return kept | {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "LANGUAGE": "en"}


def _build(folder: Path) -> None:
    print("The embedded sites are filled once, into the cache; this takes about a minute.", file=sys.stderr, flush=True)
    command = [sys.executable, "-W", "ignore", "-m", "agentgym_envs.webarena.sites.build", str(folder)]
    try:
        done = subprocess.run(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=_stderr(),
            stderr=subprocess.PIPE,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Fault("start", f"the embedded sites were not filled within {BUILD_SECONDS:g} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise Fault("start", f"the embedded sites could not be filled (exit status {done.returncode}): {said}")


def _stderr() -> int:
    """Where progress is shown; nowhere if this process has no standard error of its own."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL
