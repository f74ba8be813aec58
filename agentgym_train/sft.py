"""Supervised fine-tuning: the replies of the oracle, of conversations, or of a run's own episodes are imitated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym_train.config_kinds import SFTConfig
from agentgym_train.offline import Example, OfflineRun
from agentgym_train.run import drive
from agentgym_train.supervised import imitate, play_oracle
from agentgym_train.terminal import Terminal
from agentgym_train.training_data import (
    episode_trajectory,
    is_episode,
    messages_of,
    read_records,
    refused_episode,
    write_down,
)


class SFT(OfflineRun):
    """A run of supervised fine-tuning."""

    config: SFTConfig
    first_phase = "sft"
    examples_are = "episodes"

    def read(self) -> list[Example]:
        """The oracle's episodes of the training tasks, or what the file holds."""
        if self.config.data.path:
            return self._from_file()
        count = self.config.data.tasks or None
        return [
            Example((trajectory,), scenario)
            for scenario in self.scenarios
            for trajectory in play_oracle(self, scenario, scenario.pools.train[:count])
        ]

    def learn(self, step: int, places: Sequence[int], lr: float) -> dict[str, float]:
        """Take a step on the likelihood of the replies: the mean over all trained tokens of -log p."""
        batch = [self.examples[place].trajectories[0] for place in places]
        return imitate(self, step, batch, lr)

    def _from_file(self) -> list[Example]:
        data, chat = self.config.data, self.policy.chat
        examples = []
        for record in read_records(data.path, "data.path"):
            if not is_episode(record.data):
                trajectory = write_down(messages_of(record), chat, record.where)
            elif reason := refused_episode(record, self.held_out_tasks):
                self.left_out[reason] += 1
                continue
            else:
                trajectory = episode_trajectory(record, chat)
                if trajectory.score < data.min_score:
                    self.left_out[f"score below data.min_score={data.min_score:g}"] += 1
                    continue
            examples.append(Example((trajectory,)))
        return examples


def sft(config: SFTConfig, resume: bool = False, terminal: Terminal | None = None) -> dict[str, Any]:
    """Run or resume a run of supervised fine-tuning (see `run.drive`)."""
    return drive(SFT, config, resume, terminal)
