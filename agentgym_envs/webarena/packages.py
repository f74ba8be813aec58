"""Where the browser is, and which command installs what is not there."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

INSTALL = "pip install 'agentgym-suite[webarena]'"
INSTALL_BROWSER = "python -m playwright install --with-deps --only-shell chromium"
NO_BROWSER = f"WebArena needs a Chromium. Install one with: {INSTALL_BROWSER}"
CHROMIUM_VARIABLE = "CHROMIUM_PATH"
# A headless shell first: it draws no windows, so contexts open in half the time and memory.
_NAMES = (
    *("chromium-headless-shell", "chrome-headless-shell"),
    *("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"),
)


class SetupError(RuntimeError):
    """Something that WebArena needs is not installed; the message has the command that installs it."""


def check_playwright() -> None:
    """Check that the package `playwright` is there, without importing it.

    Raises:
        SetupError: If it is not.
    """
    if importlib.util.find_spec("playwright") is None:
        raise SetupError(f"WebArena needs the package playwright, which is not installed. Install it with: {INSTALL}")


def find_chromium(given: str | None = None) -> Path | None:
    """Return the Chromium to use: the given one, else that of CHROMIUM_PATH, else the system's.

    Returns:
        Its path, or None where there is none of these and Playwright's own is to be tried.

    Raises:
        ValueError: If the given one, or the one that CHROMIUM_PATH names, does not exist.
    """
    for source, name in (("chromium", given), (CHROMIUM_VARIABLE, os.environ.get(CHROMIUM_VARIABLE))):
        if name:
            if not isinstance(name, str | os.PathLike):
                raise ValueError(f"WebArena: {source}={name!r} is no path of a Chromium or Chrome.")
            found = shutil.which(name)
            if found is None:
                raise ValueError(f"WebArena: {source}={name!r} is no program; give the path of a Chromium or Chrome.")
            return Path(found)
    return next((Path(found) for name in _NAMES if (found := shutil.which(name))), None)


def chromium_or_raise() -> Path:
    """Return the Chromium that is used, Playwright's own if there is no other.

    Raises:
        SetupError: If there is none, or no Playwright.
        ValueError: If the one that CHROMIUM_PATH names does not exist.
    """
    check_playwright()
    found = find_chromium()
    if found is None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            found = Path(playwright.chromium.executable_path)
    if not found.exists():
        raise SetupError(NO_BROWSER)
    return found


def has_chromium() -> bool:
    """Whether there is a Chromium, and Playwright."""
    try:
        return chromium_or_raise().exists()
    except (SetupError, ValueError):
        return False
