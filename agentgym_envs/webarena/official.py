"""WebArena's own tasks: the 812 of WebArena-Verified with its evaluators, the 812 classic ones, files of either kind.

Both sets come with the package `webarena-verified`. Its evaluators look at the agent's answer and at the requests that
the browser has sent.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.webarena import tasks
from agentgym_envs.webarena.packages import SetupError
from agentgym_envs.webarena.tasks import WebTask

VERIFIED, CLASSIC = "verified", "classic"
INSTALL_VERIFIED = "pip install --no-deps webarena-verified==1.2.3 && pip install 'agentgym-suite[webarena-verified]'"
_PACKAGE = "webarena_verified"
_FILES = {VERIFIED: "webarena-verified.json", CLASSIC: "test.raw.json"}
_WITH_LOGIN = {"shopping", "shopping_admin", "cms", "reddit", "gitlab"}
_TEST_EVERY = 4


class TaskSet:
    """Tasks of one file, as they are played on external sites.

    Attributes:
        hash: Of the file.
        table: The tasks. Those that need sites which are not there, or that cannot be scored here, are not solvable.
    """

    def __init__(self, name: str, paths: Mapping[str, str]) -> None:
        """Read the tasks.

        Args:
            name: `"verified"`, `"classic"`, or the path of a JSON file with a list of tasks in the classic fields.
            paths: The sites that there are, as for `tasks.web_task`.

        Raises:
            SetupError: If the package with the tasks is not installed.
            ValueError: If the file cannot be read or holds no tasks.
        """
        text = _text(name)
        self.hash = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._paths = paths
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"WebArena: {name} is no JSON ({error}).") from error
        self._fields: list[dict[str, Any]] = [_classic_fields(one, name) for one in _listed(found, name)]
        official = name in _FILES
        self.table = TaskTable("WebArena", [self._task(index, official) for index in range(len(self._fields))])

    def web_task(self, index: int) -> WebTask:
        """Return what a task asks for.

        Raises:
            ValueError: If it cannot be played on these sites.
        """
        return tasks.web_task(self._fields[index], self._paths)

    def _task(self, index: int, official: bool) -> Task:
        fields = self._fields[index]
        site = {"shopping_admin": "cms"}.get(fields["sites"][0], fields["sites"][0]) if fields.get("sites") else ""
        try:
            self.web_task(index)
            playable = True
        except ValueError:
            playable = False
        return Task(
            f"webarena_{index}" if official else f"webarena-file_{index}",
            index,
            tasks.SUBSETS.get(site, "Other"),
            "test" if int(fields.get("intent_template_id") or index) % _TEST_EVERY == 0 else "train",
            "real" if official else "custom",
            playable,
        )


def evaluate(
    evaluation: Mapping[str, Any], answer: str, trace: Sequence[Mapping[str, Any]], urls: Mapping[str, str]
) -> float:
    """Score an episode with the evaluators of WebArena-Verified.

    Args:
        evaluation: The task's `eval`, as `TaskSet` has written it.
        answer: What the agent said: the object that the benchmark asks for, as JSON, or the data alone. The data
            are one item, or a JSON list.
        trace: Requests as entries of an HTTP archive.
        urls: Site to its address.
    """
    if not trace:  # the package refuses it
        return 0.0
    response = _response(answer, evaluation["task_type"])
    result = _verified(tuple(sorted(urls.items()))).evaluate_task(
        task_id=evaluation["task_id"], agent_response=response, network_trace=[dict(entry) for entry in trace]
    )
    return float(result.score)


def _response(answer: str, task_type: str) -> dict[str, Any]:
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError):  # no JSON, or too deep to be any
        given = answer
    if isinstance(given, dict) and "status" in given:
        return {"task_type": task_type, **given}
    data = given if isinstance(given, list) else [given] if isinstance(given, dict) else [answer]
    return {
        "task_type": task_type,
        "status": "SUCCESS",
        "retrieved_data": data if task_type.casefold() == "retrieve" else None,
    }


@cache
def _verified(urls: tuple[tuple[str, str], ...]) -> Any:
    from webarena_verified.api import WebArenaVerified
    from webarena_verified.types.config import WebArenaVerifiedConfig

    names = {"cms": "SHOPPING_ADMIN"}
    environments = {f"__{names.get(site, site.upper())}__": {"urls": [url]} for site, url in urls}
    return WebArenaVerified(config=WebArenaVerifiedConfig(environments=environments))


def _text(name: str) -> str:
    if name not in _FILES:
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"WebArena: the task set {name!r} cannot be read ({error}); give 'verified', 'classic' or a JSON file."
            ) from error
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"WebArena: the task set {name!r} comes with the package webarena-verified, which is not installed. "
            f"Install it with: {INSTALL_VERIFIED}"
        )
    return (Path(spec.origin).parent / "assets" / "dataset" / _FILES[name]).read_text(encoding="utf-8")


def _listed(found: Any, name: str) -> list[Mapping[str, Any]]:
    rows = found if isinstance(found, list) else [found]
    if not rows or not all(isinstance(row, Mapping) and "intent" in row for row in rows):
        raise ValueError(f"WebArena: {name} holds no list of tasks in the classic fields (intent, sites, eval, ...).")
    return rows


def _classic_fields(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Bring a task into the fields that `tasks.web_task` reads."""
    fields = dict(row)
    sites = fields.get("sites") or []
    if fields.get("require_login", True) and "logins" not in fields:
        admin = {"shopping_admin": "cms"}
        fields["logins"] = {admin.get(site, site): "" for site in sites if site in _WITH_LOGIN}
    if name == VERIFIED:
        expected = fields["eval"][0]["expected"]
        fields["start_url"] = tasks.AND.join(fields["start_urls"])
        fields["eval"] = {"rules": VERIFIED, "task_id": fields["task_id"], "task_type": expected["task_type"]}
    return fields
