"""The part of setuptools' former module `pkg_resources` that Trac uses.

setuptools no longer has the module and Trac still imports it. It finds templates with it, and plugins, of which
there are none here: `application` imports Trac's components itself.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class DistributionNotFound(Exception):
    """A package is not installed."""


class VersionConflict(Exception):
    """A package is installed in a version that does not fit."""


class UnknownExtra(Exception):
    """A package has no such extra."""


class WorkingSet:
    """The plugins that are installed: none."""

    def find_plugins(self, environment: Any) -> tuple[list[Any], dict[Any, Any]]:  # noqa: ARG002
        """Those that can be loaded and those that cannot."""
        return [], {}

    def iter_entry_points(self, group: str) -> Iterator[Any]:  # noqa: ARG002
        """Their entry points."""
        return iter(())


def get_distribution(name: str) -> SimpleNamespace:
    """A package's version.

    Raises:
        DistributionNotFound: If it is not installed.
    """
    try:
        return SimpleNamespace(version=metadata.version(name))
    except metadata.PackageNotFoundError as error:
        raise DistributionNotFound(name) from error


def find_distributions(path: str, only: bool = False) -> Iterator[Any]:  # noqa: ARG001
    """The packages in a folder; only asked for to describe plugins."""
    return iter(())


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def resource_filename(package: str, name: str) -> str:
    """Where a file of a package is."""
    origin = importlib.import_module(package).__file__
    assert origin is not None
    return str(Path(origin).parent / name)


def resource_listdir(package: str, name: str) -> list[str]:
    """The names in a folder of a package."""
    return sorted(path.name for path in Path(resource_filename(package, name)).iterdir())


def resource_exists(package: str, name: str) -> bool:
    """Whether a package has a file."""
    return Path(resource_filename(package, name)).exists()


def install() -> None:
    """Make this the module `pkg_resources` of the process."""
    module = ModuleType("pkg_resources")
    module.__dict__.update({name: value for name, value in globals().items() if not name.startswith("_")})
    module.__dict__.update(working_set=WorkingSet(), Environment=lambda path: path, Distribution=SimpleNamespace)
    sys.modules["pkg_resources"] = module
