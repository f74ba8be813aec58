"""What environments see of the embedded sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

SITES = ("shopping", "cms", "reddit", "gitlab")


class Cookie(NamedTuple):
    """A cookie to be put into the browser before the first page; it belongs to exactly one host.

    Attributes:
        name: Its name.
        value: Its value.
        url: The origin that it is for, as `Tenant.origins` has it.
        http_only: Whether scripts in pages cannot read it.
        same_site: Whether it is sent along from other sites' pages.
    """

    name: str
    value: str
    url: str
    http_only: bool = True
    same_site: Literal["Lax", "Strict", "None"] = "Lax"


class Tenant(Protocol):
    """One environment's own copy of all sites. Nothing done in one can be seen in another.

    Every method raises `agentgym_envs.core.Fault` when the server process died or does not answer in time;
    the tenant is then lost, and a new server must be started. A tenant is used by one thread at a time.
    """

    @property
    def origins(self) -> Mapping[str, str]:
        """Site name to the origin that the browser uses, e.g. `http://shopping.t17.localhost:41234`.

        The names are `SITES`. The port is ephemeral and on the loopback interface only.
        """

    def reset(self, logins: Mapping[str, str]) -> Mapping[str, list[Cookie]]:
        """Put everything back to the pristine state, the clock included.

        Args:
            logins: Site name to the account that is logged in there. Sites that are left out are not logged in.

        Returns:
            Site name to the cookies of the session, for each site of `logins`.

        Raises:
            ValueError: If a site or an account is unknown; the message lists those that exist.
        """

    def snapshot(self) -> bytes:
        """Return the whole server-side state, as a difference to the pristine state."""

    def restore(self, data: bytes) -> None:
        """Put the state of a snapshot back, taken from any tenant of the same data.

        Raises:
            ValueError: If `data` is no snapshot, or one of other data.
        """

    def state_hash(self) -> str:
        """Hash of the whole server-side state: databases, uploads, settings, clock, random generator."""

    def clock(self) -> float | None:
        """The tenant's time in seconds since 1970, for the page's `Date`; None for the real one.

        That of embedded sites advances a second a page.
        """

    def query(self, site: str, name: str, **arguments: Any) -> Any:
        """Ask a read-only question about the state, for scoring; `queries.py` lists them with their arguments.

        Returns:
            Lists, dictionaries, strings, numbers and booleans.

        Raises:
            ValueError: If there is no such question or an argument is not accepted.
        """

    def close(self) -> None:
        """Give the tenant up; a second call does nothing."""


class SiteServer(Protocol):
    """The server process, shared by all environments of one process. It dies with the process that started it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known, and belongs to this process."""

    def open_tenant(self) -> Tenant:
        """Make a tenant in the pristine state, with nobody logged in.

        Raises:
            Fault: If the server died or does not answer in time.
        """

    def close(self) -> None:
        """End the process and with it all tenants; a second call does nothing."""


def start_sites(start_seconds: float = 60.0, call_seconds: float = 30.0) -> SiteServer:
    """Start the server process.

    The pristine state is built first where the cache folder does not have it, which takes a minute once and is
    not part of `start_seconds`.

    Args:
        start_seconds: What the start may take.
        call_seconds: What the answer to a call may take.

    Raises:
        Fault: If it does not start.
        ModuleNotFoundError: If the packages of the extra `webarena` are missing.
    """
    from agentgym_envs.webarena.sites.client import SiteProcess

    return SiteProcess(start_seconds, call_seconds)
