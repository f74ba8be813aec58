"""Trac's environment on a tenant's database, and the function that answers requests with it."""

from __future__ import annotations

import importlib
import sqlite3
import weakref
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from agentgym_envs.webarena.sites import determinism
from agentgym_envs.webarena.sites.tenants import Database
from agentgym_envs.webarena.sites.trac_project import resources

resources.install()
determinism.patch_trac()

from trac.config import Configuration  # noqa: E402 (Trac must be prepared first)
from trac.db.schema import Table  # noqa: E402
from trac.db.sqlite_backend import SQLiteConnection, SQLiteConnector  # noqa: E402
from trac.db.util import ConnectionWrapper  # noqa: E402
from trac.env import Environment  # noqa: E402
from trac.util import translation  # noqa: E402
from trac.util.concurrency import get_thread_id  # noqa: E402
from trac.web.api import HTTPException, HTTPInternalServerError, RequestDone  # noqa: E402
from trac.web.chrome import Chrome  # noqa: E402
from trac.web.main import RequestDispatcher, RequestWithSession, _send_user_error  # noqa: E402

_PARTS = (
    "trac.admin.web_ui", "trac.attachment", "trac.mimeview.patch", "trac.notification.api", "trac.prefs.web_ui",
    "trac.search.web_ui", "trac.ticket.admin", "trac.ticket.batch", "trac.ticket.query", "trac.ticket.report",
    "trac.ticket.roadmap", "trac.ticket.web_ui", "trac.timeline.web_ui", "trac.versioncontrol.web_ui",
    "trac.web.auth", "trac.web.main", "trac.web.session", "trac.wiki.macros", "trac.wiki.web_api",
    "trac.wiki.web_ui", "tracopt.ticket.deleter", "tracopt.versioncontrol.git.git_fs",
    "agentgym_envs.webarena.sites.trac_project.login",
)  # fmt: skip
_LANGUAGE = "en_US"
_OURS = ("agentgym_envs.", "tracopt.")

# The first has a replacement here. The others would reach outside the tenant: plugins and folders of the machine,
# mail, the log. The path of a repository is the machine's business too.
_LEFT_OUT = frozenset({
    "trac.web.auth.loginmodule",
    "trac.db.sqlite_backend.sqliteconnector",
    "trac.admin.web_ui.pluginadminpanel",
    "trac.admin.web_ui.loggingadminpanel",
    "trac.versioncontrol.admin.repositoryadminpanel",
})  # fmt: skip


class TenantConnection(SQLiteConnection):
    """A tenant's connection; opened and closed with each use, without effect on the connection itself."""

    poolable = False

    def __init__(self, connection: sqlite3.Connection, log: Any) -> None:
        """Wrap the connection."""
        self._active_cursors: Any = weakref.WeakKeyDictionary()
        self._eager = True
        ConnectionWrapper.__init__(self, connection, log)

    def close(self) -> None:
        """Leave the connection to the tenant."""


class TenantConnector(SQLiteConnector):
    """Connects Trac to the database of the environment's tenant."""

    def get_connection(self, path: str, log: Any = None, params: Any = None) -> TenantConnection:  # noqa: ARG002
        """The tenant's connection."""
        return TenantConnection(self.env.database.connection, log)

    def init_db(self, path: str, schema: Iterable[Table], log: Any = None, params: Any = None) -> None:  # noqa: ARG002
        """Make the tables."""
        with closing(self.env.database.connection.cursor()) as cursor:
            for table in schema:
                for statement in self.to_sql(table):
                    cursor.execute(statement)


class TenantEnvironment(Environment):
    """Trac's environment of one tenant."""

    def __init__(self, folder: Path, database: Database) -> None:
        """Open it.

        Args:
            folder: Holds `VERSION` and `conf/trac.ini`.
            database: The tenant's.
        """
        self.database = database
        super().__init__(str(folder))
        if Chrome.jenv is None:  # compiling the templates takes longer than any page, and they are the same for all
            chrome = Chrome(self)
            chrome.load_template("layout.html")
            Chrome.jenv, Chrome.jenv_text = chrome.jenv, chrome.jenv_text

    def setup_config(self) -> None:
        """Read the settings; there are no plugins to be looked for."""
        self.config = Configuration(self.config_file_path, {"envname": self.name})
        self.setup_log()

    def is_component_enabled(self, cls: Any) -> bool | None:
        """Trac's rules, except for what must not be there whatever the settings say."""
        name = self._component_name(cls)
        if name in _LEFT_OUT:
            return False
        return True if name.startswith(_OURS) else super().is_component_enabled(cls)


def load() -> None:
    """Import Trac's components, once a process."""
    for part in _PARTS:
        importlib.import_module(part)


def answer(environment: TenantEnvironment, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    """Answer a request; the WSGI application of one environment."""
    environ["HTTP_ACCEPT_LANGUAGE"] = _LANGUAGE
    request = RequestWithSession(environ, start_response)
    environment.abs_href = request.abs_href
    dispatcher = RequestDispatcher(environment)
    dispatcher.set_default_callbacks(request)
    translation.activate(_LANGUAGE)
    try:
        dispatcher.dispatch(request)
    except RequestDone as done:
        return done.iterable or request._response or []
    except HTTPException as error:
        _send_user_error(request, environment, error)
    except Exception as error:  # Trac's own page for these shows the machine's folders
        _send_user_error(request, environment, HTTPInternalServerError(f"{type(error).__name__}: {error}"))
    finally:
        translation.deactivate()
        environment.shutdown(get_thread_id())
    return request._response or []
