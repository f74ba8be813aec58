"""A tenant's state in the server process: databases, uploads, the tracker's folder, the clock.

A request is handled inside `Tenant.visit`, which makes the tenant the current one of its thread and holds the
tenant's lock. Whatever asks for the time, a random value, a database or an upload finds the tenant there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import random
import shutil
import sqlite3
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_envs.webarena.sites.pages import apply_difference, difference

START = 1_741_943_400.0
"""The tenants' clocks at reset, in seconds since 1970: Friday 14 March 2025, 9:10 UTC."""

DATABASE_OF = {"shopping": "shop", "cms": "shop", "reddit": "forum", "gitlab": "tracker"}
"""Site to the database that it shows. The dashboard and the shop front are two views of one shop."""

LOCK_SECONDS = 20.0
STATEMENT_SECONDS = 10.0
MAX_VALUE_BYTES = 32 * 2**20
"""Largest text or blob in a statement: the tracker lets its admin write some, and all tenants share the memory."""

_STEPS_BETWEEN_LOOKS = 500_000
SNAPSHOT_FORMAT = 1


class Busy(RuntimeError):
    """A tenant's earlier request is still being handled."""


class Pristine:
    """What every tenant starts from, read once.

    Attributes:
        folder: The folder in the cache.
        hash: Names the content and the versions of the packages it was made with.
        databases: Bytes of each SQLite database.
        uploads: Files of the shop and the forum, by path.
        settings: The tracker's `trac.ini`.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder that `build` has written."""
        self.folder = folder
        self.hash = folder.name
        self.databases = {name: (folder / f"{name}.db").read_bytes() for name in ("shop", "forum", "tracker")}
        media = folder / "media"
        self.uploads = {str(path.relative_to(media)): path.read_bytes() for path in _files(media)}
        self.settings = (folder / "trac.ini").read_text(encoding="utf-8")


class Database:
    """An SQLite database in memory, behind one connection.

    Attributes:
        connection: The connection.
        deadline: When running statements are ended, as `time.monotonic` counts.
    """

    def __init__(self, data: bytes, prepare: Callable[[sqlite3.Connection], None] = lambda _: None) -> None:
        """Load a database.

        Args:
            data: The bytes of its file; empty for an empty one.
            prepare: Makes a fresh connection fit for the application that uses it.
        """
        self._prepare = prepare
        self.deadline = math.inf
        self.connection = sqlite3.connect(":memory:")
        self.load(data)

    def _late(self) -> bool:
        """Asked by SQLite while a statement runs; True ends it with an error."""
        return time.monotonic() > self.deadline

    def load(self, data: bytes) -> None:
        """Replace the contents, on a fresh connection: settings and temporary tables of the old one are gone."""
        self.connection.close()
        self.connection = sqlite3.connect(
            ":memory:",
            check_same_thread=False,  # the tenant's lock lets one thread in at a time
            detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES,
        )
        if data:
            self.connection.deserialize(data)
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # no statement reaches a file
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        self.connection.execute("PRAGMA journal_mode = MEMORY").close()  # what is loaded has no file to journal beside
        self._prepare(self.connection)
        self.connection.set_progress_handler(self._late, _STEPS_BETWEEN_LOOKS)
        self._untouched_at: int | None = self.connection.total_changes

    @property
    def touched(self) -> bool:
        """Whether it may differ from the pristine one: a row was written, or something else was loaded."""
        return self.connection.total_changes != self._untouched_at

    def mark_touched(self) -> None:
        """Say that what was loaded is not the pristine database."""
        self._untouched_at = None

    def data(self) -> bytes:
        """The bytes of the database."""
        if self.connection.in_transaction:
            self.connection.rollback()
        return self.connection.serialize()

    def close(self) -> None:
        """Free it."""
        self.connection.close()


class Visit(NamedTuple):
    """A request that is being handled in this thread.

    Attributes:
        tenant: Whose it is.
        site: The site that it asks.
        random: Generator of all random values of this request.
    """

    tenant: Tenant
    site: str
    random: random.Random

    @property
    def database(self) -> Database:
        """The database that the site shows."""
        return self.tenant.databases[DATABASE_OF[self.site]]


_visit: ContextVar[Visit | None] = ContextVar("visit", default=None)


def visit() -> Visit:
    """The request that is being handled in this thread.

    Raises:
        LookupError: If there is none.
    """
    current = _visit.get()
    if current is None:
        raise LookupError("no tenant's request is being handled in this thread")
    return current


def now() -> float:
    """The current tenant's time, or the real one where no request is handled."""
    current = _visit.get()
    return time.time() if current is None else current.tenant.now


def random_bytes(count: int) -> bytes:
    """Random bytes that depend on the tenant's clock only, so that the same actions give the same pages."""
    generator = visit().random
    return bytes(int(generator.random() * 256) for _ in range(count))


class Tenant:
    """One environment's copy of the sites.

    Attributes:
        label: Part of the host names.
        databases: Name to database.
        uploads: Differences of the uploaded files to the pristine ones: path to bytes, or None where deleted.
        tracker: What belongs to the tracker besides its database.
        ticks: Requests since the reset.
    """

    def __init__(self, label: str, pristine: Pristine, tracker: Tracker, prepare: Callable[..., None]) -> None:
        """Make a tenant in the pristine state.

        Args:
            label: Part of the host names.
            pristine: The state it starts in.
            tracker: The tracker's other files, not yet opened.
            prepare: Makes connections fit for Django.
        """
        self.label = label
        self.pristine = pristine
        self.databases = {
            name: Database(data, prepare) if name != "tracker" else Database(data)
            for name, data in pristine.databases.items()
        }
        self.uploads: dict[str, bytes | None] = {}
        self.tracker = tracker
        self.ticks = 0
        self._lock = threading.RLock()
        tracker.open(self.databases["tracker"])

    @property
    def now(self) -> float:
        """The tenant's time in seconds since 1970."""
        return START + self.ticks

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no request of the tenant is being handled, and keep others out.

        Raises:
            Busy: If that takes too long.
        """
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise Busy(f"an earlier request of this tenant has not been answered for {LOCK_SECONDS:g} s")
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def visit(self, site: str, tick: bool = True) -> Iterator[Visit]:
        """Handle a request to a site inside this.

        Args:
            site: One of `interface.SITES`.
            tick: Whether the clock advances.

        Raises:
            Busy: If an earlier request takes too long.
        """
        with self.locked():
            self.ticks += tick
            current = Visit(self, site, random.Random(f"request {self.ticks}"))
            token = _visit.set(current)
            current.database.deadline = time.monotonic() + STATEMENT_SECONDS
            try:
                yield current
            finally:
                current.database.deadline = math.inf
                _visit.reset(token)

    def upload(self, path: str) -> bytes | None:
        """An uploaded file; None where there is none."""
        return self.uploads[path] if path in self.uploads else self.pristine.uploads.get(path)

    def reset(self) -> None:
        """Put everything back to the pristine state; what was not touched is left alone."""
        with self.locked():
            touched = [name for name, database in self.databases.items() if database.touched]
            for name in touched:
                self.databases[name].load(self.pristine.databases[name])
            self.uploads.clear()
            if self.tracker.restore(self.pristine.settings, {}) or "tracker" in touched:
                self.tracker.open(self.databases["tracker"])
            self.ticks = 0

    def snapshot(self) -> bytes:
        """Return the state as a difference to the pristine one."""
        with self.locked():
            files: dict[str, bytes] = {
                f"database/{name}": difference(self.pristine.databases[name], database.data())
                for name, database in self.databases.items()
                if database.touched
            }
            deleted = sorted(path for path, data in self.uploads.items() if data is None)
            files |= {f"upload/{path}": data for path, data in self.uploads.items() if data is not None}
            settings, attachments = self.tracker.files()
            files |= {f"attachment/{path}": data for path, data in attachments.items()}
            head = {
                "format": SNAPSHOT_FORMAT,
                "data": self.pristine.hash,
                "ticks": self.ticks,
                "deleted": deleted,
                "settings": settings,
            }
            return _packed({"head.json": json.dumps(head).encode(), **files})

    def restore(self, data: bytes) -> None:
        """Put the state of a snapshot back.

        Raises:
            ValueError: If it is none, or one of other data.
        """
        head, files = _unpacked(data, self.pristine.hash)
        with self.locked():
            for name, database in self.databases.items():
                pristine = self.pristine.databases[name]
                changes = files.get(f"database/{name}")
                if changes is not None:
                    database.load(apply_difference(pristine, changes))
                    database.mark_touched()
                elif database.touched:
                    database.load(pristine)
            self.uploads = {path: None for path in head["deleted"]} | dict(_below("upload/", files))
            self.tracker.restore(head["settings"], _below("attachment/", files))
            self.tracker.open(self.databases["tracker"])
            self.ticks = head["ticks"]

    def state_hash(self) -> str:
        """Return a hash of the whole state."""
        with self.locked():
            digest = hashlib.sha256()
            parts: dict[str, bytes] = {f"database/{name}": base.data() for name, base in self.databases.items()}
            parts |= {f"upload/{path}": data or b"" for path, data in self.uploads.items()}
            settings, attachments = self.tracker.files()
            parts |= {f"attachment/{path}": data for path, data in attachments.items()}
            parts |= {"settings": settings.encode(), "ticks": str(self.ticks).encode()}
            parts["repositories"] = self.tracker.repositories().encode()
            for name in sorted(parts):
                digest.update(f"{name} {len(parts[name])}\n".encode())
                digest.update(parts[name])
            return digest.hexdigest()

    def close(self) -> None:
        """Free everything."""
        with self.locked():
            for database in self.databases.values():
                database.close()
            self.tracker.close()


class Tracker:
    """The tracker's folder, with its settings and attachments, and the application that works in it.

    The git repositories are the same for all tenants: no page writes to them, and their files are read-only.
    """

    def __init__(self, folder: Path, pristine: Pristine, start: Callable[[Path, Database], Any]) -> None:
        """Make the folder.

        Args:
            folder: A place for it, which does not exist yet.
            pristine: The state that it starts in.
            start: Opens the application on folder and database.
        """
        self.folder = folder
        self._repositories = pristine.folder / "git"
        self._start = start
        self.application: Any = None
        (folder / "conf").mkdir(parents=True)
        (folder / "VERSION").write_bytes((pristine.folder / "VERSION").read_bytes())
        self._settings_path = folder / "conf" / "trac.ini"
        self._write_settings(pristine.settings)

    def _write_settings(self, settings: str) -> None:
        self._settings_path.write_text(settings.replace("GIT/", f"{self._repositories}/"), encoding="utf-8")

    def _read_settings(self) -> str:
        """The settings, without the place of the repositories, which is another on each machine."""
        return self._settings_path.read_text(encoding="utf-8").replace(f"{self._repositories}/", "GIT/")

    def open(self, database: Database) -> None:
        """Open the application anew; it keeps nothing of what it knew."""
        self.application = self._start(self.folder, database)

    def files(self) -> tuple[str, dict[str, bytes]]:
        """Return settings and attachments."""
        attachments = self.folder / "files"
        found = {str(path.relative_to(attachments)): path.read_bytes() for path in _files(attachments)}
        return self._read_settings(), found

    def restore(self, settings: str, attachments: Mapping[str, bytes]) -> bool:
        """Put settings and attachments back; return whether any were different."""
        if self.files() == (settings, dict(attachments)):
            return False
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        for path, data in attachments.items():
            target = self.folder / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self._write_settings(settings)
        return True

    def repositories(self) -> str:
        """Return the names and commits of all branches and tags."""
        refs = [path for path in _files(self._repositories) if path.name == "packed-refs" or "refs" in path.parts]
        return "".join(f"{path.relative_to(self._repositories)} {path.read_text()}\n" for path in refs)

    def close(self) -> None:
        """Remove the folder."""
        self.application = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _below(prefix: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unpacked(data: bytes, expected: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        head = json.loads(files.pop("head.json"))
        found = (head["format"], head["data"])
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"these {len(data)} bytes are no snapshot of the sites: {error}") from error
    if found != (SNAPSHOT_FORMAT, expected):
        raise ValueError(
            f"the snapshot is of format {found[0]} and data {found[1]}; this server has format {SNAPSHOT_FORMAT} "
            f"and data {expected}. Take it again with these versions of the packages."
        )
    return head, files
