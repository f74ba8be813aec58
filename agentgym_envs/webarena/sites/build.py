"""Makes the pristine state: `python -m agentgym_envs.webarena.sites.build FOLDER`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django

from agentgym_envs.webarena.sites import determinism
from agentgym_envs.webarena.sites.tenants import Database, Tenant


class Workshop(Tenant):
    """A tenant with empty databases, in which the content is made."""

    def __init__(self) -> None:
        """Make it."""
        from agentgym_envs.webarena.sites.django_project.database.base import prepare

        self.databases = {"shop": Database(b"", prepare), "forum": Database(b"", prepare), "tracker": Database(b"")}
        self.uploads = {}
        self.pristine: Any = SimpleNamespace(uploads={})
        self.ticks = 0
        self._lock = threading.RLock()


def build(folder: Path) -> None:
    """Fill an empty folder with what `tenants.Pristine` reads."""
    start_django()
    from django.core.management import call_command
    from django.db import connection

    workshop = Workshop()
    from agentgym_envs.webarena.sites.content import forum, shop, tracker

    for site, name, fill in (("shopping", "shop", shop.fill), ("reddit", "forum", forum.fill)):
        say(f"{name}: tables")
        with workshop.visit(site, tick=False):
            call_command("migrate", run_syncdb=True, verbosity=0, interactive=False)
            say(f"{name}: content")
            from django.db import transaction

            with transaction.atomic():
                fill()
            connection.close()
        workshop.ticks = 0
        workshop.databases[name].connection.execute("VACUUM").close()
        (folder / f"{name}.db").write_bytes(workshop.databases[name].data())
    for path, data in workshop.uploads.items():
        assert data is not None
        target = folder / "media" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    with workshop.visit("gitlab", tick=False):
        tracker.fill(folder, workshop.databases["tracker"], say)
    workshop.databases["tracker"].connection.execute("VACUUM").close()
    (folder / "tracker.db").write_bytes(workshop.databases["tracker"].data())
    say("done")


def start_django() -> None:
    """Set Django up, with the tenants' time and random values, without the history of its tables."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "agentgym_envs.webarena.sites.django_project.settings"
    determinism.patch_django()
    from django.conf import settings

    settings.MIGRATION_MODULES = _NoMigrations()
    django.setup()
    determinism.patch_oscar()


class _NoMigrations:
    """Tables are made as the models are now, not step by step as they came to be."""

    def __contains__(self, app: str) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None


def say(what: str) -> None:
    """Tell the process that waits how far this is."""
    print(f"embedded sites: {what}", flush=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
