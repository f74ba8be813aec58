"""Numbers that describe batches of trajectories; `docs/training.md` explains each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_train.advantages import GroupAdvantages
from agentgym_train.packing import Row
from agentgym_train.trajectory import Trajectory


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Means over episodes that did not end in an error."""
    counted = [trajectory for trajectory in trajectories if trajectory.end != "error"]
    turns = [turn for trajectory in counted for turn in trajectory.turns]
    acted = [turn for turn in turns if turn.acted]
    ends = Counter(trajectory.end for trajectory in trajectories)
    return {
        "reward/mean": _mean([trajectory.reward for trajectory in counted]),
        "score/mean": _mean([trajectory.score for trajectory in counted]),
        "success/mean": _mean([float(trajectory.success) for trajectory in counted]),
        "turns/mean": len(acted) / len(counted) if counted else 0.0,
        "tokens/sampled": sum(trajectory.sampled for trajectory in counted),
        "tokens/reply_mean": _mean([float(turn.stop - turn.start) for turn in turns]),
        "valid_action_share": _mean([float(turn.valid) for turn in acted]),
        "cut_reply_share": _mean([float(turn.finish == "length") for turn in turns]),
        **{f"end/{end}": count for end, count in sorted(ends.items())},
        **_trial_metrics(counted),
    }


def _trial_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Where the agent tries failed tasks again, how often, and what it would have had without."""
    if all(trajectory.trials == 1 for trajectory in trajectories):
        return {}
    return {
        "trials/mean": _mean([float(trajectory.trials) for trajectory in trajectories]),
        "success/first_trial": _mean([float(t.success and t.trials == 1) for t in trajectories]),
    }


def batch_metrics(trajectories: Sequence[Trajectory], groups: GroupAdvantages, rows: Sequence[Row]) -> dict[str, Any]:
    """Numbers of a training step's rollouts and of their packing."""
    members: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for trajectory in trajectories:
        members.setdefault(trajectory.group, []).append(tuple(trajectory.tokens))
    packed = sum(len(row.tokens) for row in rows)
    unpacked = sum(row.unpacked for row in rows)
    return {
        **episode_metrics(trajectories),
        "groups/total": groups.groups,
        "groups/zero_variance": groups.zero_variance,
        "groups/distinct_share": _mean([len(set(group)) / len(group) for group in members.values()]),
        "tokens/trained": sum(len(row.targets) for row in rows),
        "tokens/batch": unpacked,
        "tokens/computed": packed,
        # Rows are packed to their exact length: no position is computed that holds no token.
        "padding_share": 0.0,
        "shared_prompt_share": 1 - packed / unpacked if unpacked else 0.0,
    }


def evaluation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Numbers of an evaluation, with the success rate of each task."""
    by_task: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.end != "error":
            by_task.setdefault(trajectory.episode.task, []).append(float(trajectory.success))
    return {
        **episode_metrics(trajectories),
        "episodes": len(trajectories),
        "tasks": len(by_task),
        "samples": len(trajectories) // max(1, len(by_task)),
        "success/by_task": {task: _mean(values) for task, values in sorted(by_task.items())},
    }


def per_scenario(parts: Mapping[str, Sequence[Trajectory]]) -> dict[str, Any]:
    """Numbers of each scenario's episodes under its name, where there are several scenarios."""
    if len(parts) == 1:
        return {}
    return {
        f"{name}/{key}": value
        for name, trajectories in parts.items()
        if trajectories
        for key, value in {"horizon": trajectories[0].episode.horizon, **episode_metrics(trajectories)}.items()
    }


def lag_metrics(lags: Sequence[int], late: int) -> dict[str, Any]:
    """How many steps late groups were finished, and how many episodes are left to later steps."""
    return {"lag/mean": _mean(lags), "lag/max": max(lags, default=0), "lag/episodes_left": late}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
