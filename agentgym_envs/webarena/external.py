"""Sites of the user's own, by address: WebArena's and WebArena-Verified's containers, or others like them.

A back end is a set of such sites. An environment has one for itself as long as it lives, because what it does there
would be seen by others. Between episodes the sites that it has sent anything but reading requests are reset in the
way that the user names, and waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from agentgym_envs.cache import cache_dir, make_folder
from agentgym_envs.core import Fault
from agentgym_envs.webarena.forms import LoginRefused, log_in
from agentgym_envs.webarena.sites.interface import SITES, Cookie
from agentgym_envs.webarena.tasks import OTHER_SITES

VARIABLE = "AGENTGYM_WEBARENA_"
NOT_NEEDED = "none"
_OFFICIAL = {"shopping": "shopping", "shopping_admin": "cms", **{name: name for name in (*SITES[2:], *OTHER_SITES)}}
# Where the benchmark's sites log in, and the accounts that it publishes for them.
_LOGIN = {
    "shopping": ("/customer/account/login/", "emma.lopez@gmail.com", "Password.123"),
    "cms": ("/", "admin", "admin1234"),
    "reddit": ("/login", "MarvelsGrantMan136", "test1234"),
    "gitlab": ("/users/sign_in", "byteblaze", "hello1234"),
}
_POLL_SECONDS = 0.5
_REQUEST_SECONDS = 10.0
_LOGIN_TRIES = 3


class Site(NamedTuple):
    """A site of the user's.

    Attributes:
        url: Its address: `http://host:port`, with a path where it is below one.
        reset: What puts it back: an address that is sent a POST, or a command; `none` where nothing needs to.
        health: An address that answers with success once the site can be used; by default its own.
        account: Who is logged in there, with the password after a colon; by default the benchmark's account.
        login: Path of the page where one logs in.
    """

    url: str
    reset: str = ""
    health: str = ""
    account: str = ""
    login: str = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path(self) -> str:
        """What every address of the site begins with, without a final slash."""
        return urlsplit(self.url).path.rstrip("/")


@dataclass(frozen=True)
class StartExternal:
    """Starts `ExternalSites`; equal ones share them.

    Attributes:
        backends: Sites by name, for each back end.
        reset_seconds: What a reset may take until the site can be used.
    """

    backends: tuple[tuple[tuple[str, Site], ...], ...]
    reset_seconds: float

    def __call__(self) -> ExternalSites:
        """Return them."""
        return ExternalSites(self)


def configured(sites: Mapping[str, Any] | None) -> tuple[tuple[tuple[str, Site], ...], ...]:
    """Read the option `sites`, or the environment variables in its place.

    Args:
        sites: Official name of each site to its address, or to an object with the fields of `Site`. An address may
            be several, separated by commas: that many environments can play at a time.

    Raises:
        ValueError: If a site is unknown or no site is configured.
    """
    given = sites if sites is not None else _of_variables()
    if not given:
        raise ValueError(
            f"WebArena: no external sites are configured. Give sites={{'shopping': 'http://host:7770'}}, or set "
            f"{', '.join(f'{VARIABLE}{name.upper()}' for name in _OFFICIAL)}."
        )
    if not isinstance(given, Mapping):
        raise ValueError(f"WebArena: sites maps names to addresses, not {given!r}.")
    backends: list[dict[str, Site]] = []
    for official, fields in given.items():
        if official not in _OFFICIAL:
            raise ValueError(f"WebArena: there is no site {official!r}; accepted are {', '.join(_OFFICIAL)}.")
        parts = {"url": fields} if isinstance(fields, str) else dict(fields)
        if not set(parts) <= set(Site._fields) or "url" not in parts or not all(map(_is_text, parts.values())):
            raise ValueError(
                f"WebArena: {official} is {fields!r}; give an address, or an object of texts with url and, if needed, "
                f"{', '.join(Site._fields[1:])}."
            )
        for number, found in enumerate(_split(official, parts)):
            while len(backends) <= number:
                backends.append({})
            backends[number][_OFFICIAL[official]] = found
    if len({len(backend) for backend in backends}) > 1:
        raise ValueError("WebArena: give every site the same number of addresses, one for each back end.")
    return tuple(tuple(backend.items()) for backend in backends)


class ExternalSites:
    """The back ends; see `interface.SiteServer`.

    Attributes:
        pid: This process's id: there is no process of ours.
        alive: Whether it may be used.
    """

    def __init__(self, start: StartExternal) -> None:
        """Take note of them."""
        self._start = start
        self.pid = os.getpid()
        self.alive = True

    def open_tenant(self) -> ExternalTenant:
        """Take the first back end that nobody uses.

        Raises:
            Fault: If there is none.
        """
        for backend in self._start.backends:
            lock = _locked(backend)
            if lock is not None:
                return ExternalTenant(dict(backend), lock, self._start.reset_seconds)
        raise Fault(
            "busy",
            f"all {len(self._start.backends)} back ends of the external sites are in use; what an episode changes "
            "would be seen by others. Configure one more for each environment (addresses separated by commas).",
        )

    def close(self) -> None:
        """Leave them as they are."""
        self.alive = False


class ExternalTenant:
    """A back end that one environment uses; see `interface.Tenant`. It has no saved states and no questions."""

    def __init__(self, sites: Mapping[str, Site], lock: IO[str], reset_seconds: float) -> None:
        """Take a back end over with its lock."""
        self.sites = sites
        self.origins: Mapping[str, str] = {name: site.origin for name, site in sites.items()}
        self._lock = lock
        self._reset_seconds = reset_seconds
        self._checked = False

    def note_changes(self, origins: Iterable[str]) -> None:
        """Write down, also for a later process, which sites must be reset before the next episode."""
        changed = set(origins)
        self._write({name for name, origin in self.origins.items() if origin in changed})

    def reset(self, logins: Mapping[str, str]) -> Mapping[str, list[Cookie]]:
        """Reset the sites that were changed, wait until all can be used, and log in.

        Raises:
            Fault: If that fails or takes too long.
            ValueError: If a changed site cannot be reset because nothing says how.
        """
        for name in sorted(self._changed()):
            self._reset(name)
            self._write(self._changed() - {name})
            self._checked = False
        if not self._checked:
            for name in self.sites:
                self._wait(name, time.monotonic() + self._reset_seconds)
            self._checked = True
        return {name: self._log_in(name, account) for name, account in logins.items() if name in self.sites}

    def clock(self) -> None:
        """They have the real time."""

    def snapshot(self) -> bytes:
        """Nothing: these sites cannot be saved."""
        return b""

    def restore(self, data: bytes) -> None:
        """Nothing."""

    def state_hash(self) -> str:
        """Not to be had.

        Raises:
            Fault: Always.
        """
        raise Fault("unsupported", "what external sites hold cannot be looked at as a whole")

    def query(self, site: str, name: str, **arguments: Any) -> Any:  # noqa: ARG002
        """Not to be had.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"WebArena: {site} is an external site, which cannot be asked {name!r}; use program_html.")

    def close(self) -> None:
        """Give the back end up; a second call does nothing."""
        if not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
            self._lock.close()

    # ---- parts --------------------------------------------------------------------------------------

    def _changed(self) -> set[str]:
        self._lock.seek(0)
        return set(self._lock.read().split()) & set(self.sites)

    def _write(self, names: set[str]) -> None:
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(" ".join(sorted(names)))
        self._lock.flush()

    def _reset(self, name: str) -> None:
        how = self.sites[name].reset
        if how == NOT_NEEDED:
            return
        if not how:
            raise ValueError(
                f"WebArena: an episode has changed {name} ({self.sites[name].url}), and nothing says how to reset it. "
                f"Give sites={{...: {{'url': ..., 'reset': address or command}}}} or {VARIABLE}..._RESET; "
                f"'{NOT_NEEDED}' leaves it as it is."
            )
        deadline = time.monotonic() + self._reset_seconds
        if how.startswith(("http://", "https://")):
            _post(name, how, self._reset_seconds)
        else:
            _run(name, how, self._reset_seconds)
        self._wait(name, deadline)

    def _wait(self, name: str, deadline: float) -> None:
        site = self.sites[name]
        url = site.health or f"{site.url}/"
        trouble = ""
        while True:
            trouble = _trouble(url, min(_REQUEST_SECONDS, max(0.1, deadline - time.monotonic())))
            if not trouble:
                return
            if time.monotonic() > deadline:
                raise Fault("site", f"{name} ({url}) could not be used within {self._reset_seconds:g} s: {trouble}")
            time.sleep(_POLL_SECONDS)

    def _log_in(self, name: str, account: str) -> list[Cookie]:
        site = self.sites[name]
        path, user, password = _LOGIN.get(name, ("/", "", ""))
        if site.account:
            user, _, password = site.account.partition(":")
        if account not in ("", user):
            raise ValueError(
                f"WebArena: the password of {account!r} on {name} is unknown; the account there is {user!r}."
            )
        url = f"{site.url.rstrip('/')}{site.login or path}"
        trouble = ""
        for attempt in range(_LOGIN_TRIES):
            try:
                found = log_in(url, user, password, _REQUEST_SECONDS)
                return [Cookie(key, value, site.origin) for key, value in found.items()]
            except (LoginRefused, OSError) as error:
                trouble = str(error)
                time.sleep(_POLL_SECONDS * attempt)
        raise Fault("login", f"logging in to {name} at {url} as {user!r} failed {_LOGIN_TRIES} times: {trouble}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _of_variables() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for official in _OFFICIAL:
        for field in Site._fields:
            suffix = "" if field == "url" else f"_{field.upper()}"
            value = os.environ.get(f"{VARIABLE}{official.upper()}{suffix}")
            if value:
                found.setdefault(official, {})[field] = value
    return {official: fields for official, fields in found.items() if "url" in fields}


def _split(official: str, fields: Mapping[str, str]) -> list[Site]:
    """One site for each address; other fields are as many, or one for all."""
    urls = [url.strip().rstrip("/") for url in fields["url"].split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"WebArena: the address of {official} is {url!r}; give http://host:port.")
    rest = {}
    for name, value in fields.items():
        if name != "url":
            values = [part.strip() for part in value.split(",")] if len(urls) > 1 else [value.strip()]
            if len(values) not in (1, len(urls)):
                raise ValueError(
                    f"WebArena: {official} has {len(urls)} addresses and {len(values)} of {name}; give one for each."
                )
            rest[name] = values * len(urls) if len(values) == 1 else values
    return [Site(url, **{name: values[number] for name, values in rest.items()}) for number, url in enumerate(urls)]


def _locked(backend: tuple[tuple[str, Site], ...]) -> IO[str] | None:
    """Lock a back end on this machine; None if another environment has it. The file names its changed sites."""
    folder = make_folder(cache_dir("webarena", "external"))
    urls = " ".join(sorted(site.url for _, site in backend))
    path = Path(folder, hashlib.sha256(urls.encode()).hexdigest()[:16])
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _post(name: str, url: str, seconds: float) -> None:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=seconds):
            pass
    except (OSError, ValueError) as error:
        raise Fault("reset", f"resetting {name} by POST {url} failed: {error}") from error


def _run(name: str, command: str, seconds: float) -> None:
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Fault("reset", f"resetting {name} by {command!r} took more than {seconds:g} s") from error
    except OSError as error:
        raise Fault("reset", f"resetting {name} by {command!r} failed: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise Fault("reset", f"resetting {name} by {command!r} ended with exit status {done.returncode}: {said}")


def _trouble(url: str, seconds: float) -> str:
    """Return why a site cannot be used; empty if it can."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as reply:
            body: bytes = reply.read(10_000)
    except (OSError, ValueError) as error:
        return str(error)
    with contextlib.suppress(ValueError, AttributeError):
        if json.loads(body).get("success") is False:  # as the containers' control says it
            return str(body, errors="replace")[:200]
    return ""
