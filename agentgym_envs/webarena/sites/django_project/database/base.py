"""Django's SQLite backend on the connection of the tenant whose request is being handled."""

from __future__ import annotations

import sqlite3
from typing import Any

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3._functions import register as register_functions

from agentgym_envs.webarena.sites.tenants import visit


def prepare(connection: sqlite3.Connection) -> None:
    """Make a connection what Django expects it to be."""
    register_functions(connection)
    connection.execute("PRAGMA foreign_keys = ON").close()
    connection.execute("PRAGMA legacy_alter_table = OFF").close()


class DatabaseWrapper(base.DatabaseWrapper):
    """Opens and closes with each request; the tenant's connection stays open."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> sqlite3.Connection:  # noqa: ARG002
        """The current tenant's connection."""
        return visit().database.connection

    def _close(self) -> None:
        """Leave the connection to the tenant, without what was not committed."""
        if self.connection is not None and self.connection.in_transaction:
            self.connection.rollback()

    def is_in_memory_db(self) -> bool:
        """Django never closes databases in memory; this one is to be forgotten after each request."""
        return False
