"""The tasks: WebArena's classic fields, the embedded set, and where its tasks are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.webarena import scoring
from agentgym_envs.webarena.sites.interface import SITES

SUBSETS = {"shopping": "Shopping", "cms": "CMS", "reddit": "Reddit", "gitlab": "GitLab"}
SUBSETS |= {"map": "Map", "wikipedia": "Wikipedia", "homepage": "Homepage"}  # of external sites
_CLASSIC_SITES = {"shopping_admin": "cms"}
OTHER_SITES = ("map", "wikipedia", "homepage")
"""Sites of WebArena that are not among the embedded ones."""
_PLACEHOLDERS = {"__SHOPPING_ADMIN__": "cms", **{f"__{site.upper()}__": site for site in (*SITES, *OTHER_SITES)}}
_PLACEHOLDER = re.compile("|".join(_PLACEHOLDERS))
AND = " |AND| "
OPTIONAL_FIELDS = ("sites", "start_url", "logins", "eval", "plan")
# What WebArena's files have besides, and what nothing here depends on.
_IGNORED_FIELDS = ("task_id", "require_login", "storage_state", "geolocation", "require_reset", "intent_template",
                   "intent_template_id", "instantiation_dict")  # fmt: skip


class WebTask(NamedTuple):
    """A task on the sites.

    Attributes:
        intent: What the agent is asked to do.
        sites: The sites that it needs, the one that it starts on first.
        start_urls: Addresses that are open at the start, a tab for each.
        logins: Site name to the account that is logged in there.
        evaluation: How it is scored (see `scoring`).
        template: Name of the template that it was made from; empty for tasks of users.
        plan: The oracle's rules (see `oracle`); tasks of users need none.
    """

    intent: str
    sites: Sequence[str]
    start_urls: Sequence[str]
    logins: Mapping[str, str]
    evaluation: Mapping[str, Any]
    template: str = ""
    plan: Sequence[Mapping[str, Any]] = ()


def web_task(fields: Mapping[str, Any], paths: Mapping[str, str] | None = None) -> WebTask:
    """Read a task in the classic fields; `__SHOPPING__` and the like stand for the addresses of the sites.

    Args:
        fields: The task.
        paths: The sites that there are, and below which path of its host each is; by default the embedded ones.

    Raises:
        ValueError: If it is not complete, or could not be scored.
    """
    paths = dict.fromkeys(SITES, "") if paths is None else paths
    filled: dict[str, Any] = _filled(dict(fields), paths)
    intent, evaluation = filled.get("intent"), filled.get("eval") or {}
    if not isinstance(intent, str) or not intent.strip():
        raise ValueError(f"WebArena: intent is a text that is not empty, not {intent!r}.")
    named, logins = filled.get("sites") or [*paths][:1], filled.get("logins") or {}
    if not isinstance(named, list | tuple) or not isinstance(logins, Mapping):
        raise ValueError(f"WebArena: sites is a list and logins an object, not {named!r} and {logins!r}.")
    if not all(isinstance(site, str) for site in [*named, *logins]):
        raise ValueError(f"WebArena: sites are named by texts, not {[*named, *logins]!r}.")
    sites = [_CLASSIC_SITES.get(site, site) for site in named]
    for site in [*sites, *logins]:
        if site not in paths:
            raise ValueError(f"WebArena: there is no site {site!r}; accepted are {', '.join(paths)}.")
    if not all(isinstance(account, str) for account in logins.values()):
        raise ValueError(f"WebArena: logins maps sites to accounts, not {logins!r}.")
    start = filled.get("start_url") or f"http://{sites[0]}{paths[sites[0]]}/"
    if not isinstance(start, str) or not isinstance(evaluation, Mapping):
        raise ValueError("WebArena: start_url is a text, and eval an object.")
    scoring.check_evaluation(evaluation)
    for site in sorted(scoring.sites_of(evaluation) - set(paths)):
        raise ValueError(f"WebArena: eval looks at {site!r}, which is no site; accepted are {', '.join(paths)}.")
    template, plan = str(filled.get("template", "")), filled.get("plan", [])
    if not isinstance(plan, list) or any(
        not isinstance(rule, Mapping) or set(rule) != {"see", "do"} or not isinstance(rule["see"], list)
        for rule in plan
    ):
        raise ValueError(f"WebArena: a plan is a list of {{'see': [lines], 'do': action}}, not {plan!r}.")
    return WebTask(intent.strip(), sites, start.split(AND), logins, evaluation, template, plan)


def task_of_init(init: Mapping[str, Any], paths: Mapping[str, str] | None = None) -> WebTask:
    """Read `options["init"]`: a task in the classic fields, of which only `intent` and `eval` are needed.

    Args:
        init: What the user gave.
        paths: As for `web_task`.

    Raises:
        ValueError: If it is not accepted; the message says what is.
    """
    for name in ("intent", "eval"):
        if name not in init:
            raise ValueError(f"WebArena: options['init'] needs {name!r}; it has {list(init)}.")
    for name in init:
        if name not in ("intent", *OPTIONAL_FIELDS, *_IGNORED_FIELDS):
            accepted = ", ".join(("intent", *OPTIONAL_FIELDS))
            raise ValueError(f"WebArena: options['init'] has {name!r}; accepted are {accepted}.")
    task = web_task(init, paths)
    if task.evaluation.get("rules") == "verified":
        raise ValueError("WebArena: the rules 'verified' are for the official tasks, which options['task'] names.")
    return task


@cache
def embedded() -> tuple[Mapping[str, Any], ...]:
    """Return the embedded tasks' fields, in the order of their index."""
    return tuple(json.loads(_file()))


@cache
def task_table() -> TaskTable:
    """Return all embedded tasks."""
    rows = (
        Task(f"webarena-embedded_{index}", index, SUBSETS[fields["sites"][0]], fields["split"], source="embedded")
        for index, fields in enumerate(embedded())
    )
    return TaskTable("WebArena", rows)


@cache
def tasks_hash() -> str:
    """Return a hash of the embedded tasks."""
    return hashlib.sha256(_file().encode()).hexdigest()[:16]


def _file() -> str:
    return (files("agentgym_envs.webarena") / "data" / "tasks.json").read_text(encoding="utf-8")


def _filled(value: Any, paths: Mapping[str, str]) -> Any:
    """Put the sites' addresses in the place of WebArena's placeholders."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: _address(_PLACEHOLDERS[match[0]], paths), value)
    if isinstance(value, list):
        return [_filled(item, paths) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, paths) for key, item in value.items()}
    return value


def _address(site: str, paths: Mapping[str, str]) -> str:
    return f"http://{site}{paths.get(site, '')}"
