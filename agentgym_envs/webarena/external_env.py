"""The environment on sites of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from agentgym_envs.core import Outcome
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.webarena import host, official, tasks
from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.external import ExternalTenant, Site, StartExternal, configured
from agentgym_envs.webarena.tasks import WebTask

RESET_SECONDS = 600.0


class ExternalWebArenaEnv(WebArenaEnv):
    """WebArena on external sites; `make_external` makes the classes that are used.

    An episode is saved as its actions alone, and restored by replaying them on sites that were reset.
    """

    traced: ClassVar[bool] = True
    sites: ClassVar[Mapping[str, Site]]
    task_set: ClassVar[official.TaskSet]

    @classmethod
    def task_table(cls) -> TaskTable:
        """The tasks of the set that was asked for."""
        return cls.task_set.table

    @classmethod
    def data_hash(cls) -> str:
        """Hash of the tasks; what the sites hold is the user's affair."""
        return f"external, {cls.task_set.hash}"

    @classmethod
    def web_task(cls, task: Task) -> WebTask:
        """Return what a task of the table asks for."""
        return cls.task_set.web_task(task.index)

    @classmethod
    def web_task_of_init(cls, init: Mapping[str, Any]) -> WebTask:
        """Return what `options["init"]` asks for."""
        return tasks.task_of_init(init, {name: site.path for name, site in cls.sites.items()})

    def _act(self, action: str) -> Outcome:
        tenant, session = self._held.tenant(), self._held.session
        assert isinstance(tenant, ExternalTenant)
        assert session is not None
        assert session.trace is not None
        tenant.note_changes(tenant.origins.values())  # in case that this process is killed meanwhile
        try:
            return super()._act(action)
        finally:
            tenant.note_changes(session.trace.changed)

    def _score(self, answer: str) -> float:
        if self._web.evaluation.get("rules") != official.VERIFIED:
            return super()._score(answer)
        session = self._held.session
        assert session is not None
        assert session.trace is not None
        tenant = self._held.tenant()
        assert isinstance(tenant, ExternalTenant)
        trace = self._held.call(session.trace.entries())
        return official.evaluate(self._web.evaluation, answer, trace, {name: s.url for name, s in tenant.sites.items()})

    def _state(self) -> dict[str, Any]:
        return {}


def make_external(
    sites: Mapping[str, Any] | None = None,
    task_set: str | Path = official.VERIFIED,
    reset_seconds: float = RESET_SECONDS,
    **options: Any,
) -> ExternalWebArenaEnv:
    """Make the environment on external sites.

    Args:
        sites: Official name of each site (shopping, shopping_admin, reddit, gitlab, map, wikipedia, homepage) to its
            address, or to an object with `url` and, if needed, `reset`, `health`, `account` and `login`; by default
            what the variables AGENTGYM_WEBARENA_SHOPPING, AGENTGYM_WEBARENA_SHOPPING_RESET and so on say.
        task_set: `"verified"`, `"classic"`, or a JSON file with tasks in the classic fields.
        reset_seconds: What a reset of a site may take until it can be used.
        options: As for `WebArenaEnv`.

    Raises:
        ValueError: If an argument is not accepted.
        SetupError: If the package with the tasks is not installed.
    """
    if isinstance(reset_seconds, bool) or not isinstance(reset_seconds, int | float) or not reset_seconds > 0:
        raise ValueError(f"WebArena: reset_seconds is a number above 0, not {reset_seconds!r}.")
    return _kind(StartExternal(configured(sites), float(reset_seconds)), str(task_set))(**options)


@cache
def _kind(start: StartExternal, task_set: str) -> type[ExternalWebArenaEnv]:
    """The class for these sites and tasks: tables of tasks belong to classes."""
    first = dict(start.backends[0])
    starts: host.StartSites = start

    class Kind(ExternalWebArenaEnv):
        start_sites: ClassVar[host.StartSites] = staticmethod(starts)
        sites: ClassVar[Mapping[str, Site]] = first

    Kind.task_set = official.TaskSet(task_set, {name: site.path for name, site in first.items()})
    return Kind
