"""Wrappers around the scenarios: turn limits that grow, reply parsing, snapshots of wrapped environments."""

from agentgym_wrappers.horizon import (
    FixedHorizon,
    HorizonCurriculum,
    LinearHorizon,
    Schedule,
    StagedHorizon,
    schedule_from,
)
from agentgym_wrappers.listing import ListedActions
from agentgym_wrappers.parsing import ActionParser, parse_reply
from agentgym_wrappers.snapshot import fork, restore, snapshot
from agentgym_wrappers.vector import SubprocVectorEnv
from agentgym_wrappers.worker_pool import EnvironmentFailure, EnvResult, WorkerError

__all__ = [
    "ActionParser",
    "EnvResult",
    "EnvironmentFailure",
    "FixedHorizon",
    "HorizonCurriculum",
    "LinearHorizon",
    "ListedActions",
    "Schedule",
    "StagedHorizon",
    "SubprocVectorEnv",
    "WorkerError",
    "fork",
    "parse_reply",
    "restore",
    "schedule_from",
    "snapshot",
]
