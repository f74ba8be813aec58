"""Whether the packages of an extra are there and new enough, for programs that build on third-party trainers."""

from __future__ import annotations

import re
from importlib import metadata


def need(extra: str, **least: tuple[int, ...]) -> None:
    """Check packages before they are imported.

    Args:
        extra: The extra of this package that brings them, e.g. `"sb3"`.
        **least: Package (as it is imported or distributed, `_` for `-`) -> its oldest accepted version.

    Raises:
        ImportError: If one is missing or too old; the message has the command that installs it.
    """
    command = f"pip install --upgrade 'agentgym-suite[{extra}]'"
    for package, version in least.items():
        wanted = ".".join(map(str, version))
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            told = f"{package} {wanted} or newer is needed and not installed. Install it with: {command}"
            raise ImportError(told, name=package) from None
        numbers = tuple(int(number) for number in re.findall(r"\d+", found)[: len(version)])
        if numbers < version:
            raise ImportError(
                f"{package} {wanted} or newer is needed, and {found} is installed. Update it with: {command}",
                name=package,
            )
