"""The configurations of the other kinds of run: supervised, preferences, rounds of exploration, evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from agentgym_train.config import (
    Config,
    HeldOutConfig,
    OptimiserConfig,
    RunConfig,
    SamplingConfig,
    TrainingConfig,
    WarmStartConfig,
    Yaml,
)


@dataclass
class DemonstrationsConfig:
    """What is imitated."""

    path: str = ""
    """File of conversations, or a run's trajectories.jsonl; docs/training.md has the formats. Empty: the oracle's
    episodes."""
    tasks: int = 0
    """Without a file: training tasks of each scenario whose oracle episodes are imitated; 0 takes all."""
    min_score: float = 1.0
    """Of a run's episodes only those with at least this score are imitated."""


@dataclass
class SFTConfig(TrainingConfig):
    """A run of supervised fine-tuning."""

    command: ClassVar[str] = "sft"
    longer: ClassVar[str] = "epochs"

    run_dir: str = "runs/sft"
    """Folder of the run; it must not hold another run unless resume is set."""
    horizon: Annotated[int | dict[str, Any], Yaml] = 100
    """Longest episodes that are imitated, in turns: a number, or a schedule over the steps such as
    {kind: staged, stages: [[0, 4], [0.5, 8]]}, which begins with short ones."""
    epochs: int = 1
    """Passes over the data."""
    batch_size: int = 8
    """Episodes per optimiser step."""
    data: DemonstrationsConfig = field(default_factory=DemonstrationsConfig)
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(lr=1e-5, warmup_steps=10))

    @property
    def imitates_oracle(self) -> bool:
        """Unless there is a file."""
        return not self.data.path


@dataclass
class PreferencesConfig:
    """What is preferred to what."""

    path: str = ""
    """File of pairs, or a run's trajectories.jsonl, of which pairs are made; docs/training.md has the formats."""
    beta: float = 0.1
    """Strength of the tie to the reference model."""
    length_normalise: bool = False
    """Divide each log-probability by the number of trained tokens (then give a larger beta, such as 5)."""


@dataclass
class DPOConfig(TrainingConfig):
    """A run of direct preference optimisation."""

    command: ClassVar[str] = "dpo"
    longer: ClassVar[str] = "epochs"

    run_dir: str = "runs/dpo"
    """Folder of the run; it must not hold another run unless resume is set."""
    horizon: Annotated[int | dict[str, Any], Yaml] = 100
    """Longest episodes of a pair, in turns: a number, or a schedule over the steps such as
    {kind: staged, stages: [[0, 4], [0.5, 8]]}, which begins with short ones."""
    epochs: int = 1
    """Passes over the pairs."""
    batch_size: int = 8
    """Pairs per optimiser step."""
    pairs: PreferencesConfig = field(default_factory=PreferencesConfig)
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(lr=1e-6, warmup_steps=10))


@dataclass
class ExploreConfig(SamplingConfig):
    """How a round explores."""

    tasks_per_step: int = 16
    """Tasks that are rolled out together."""
    samples_per_task: int = 1
    """Episodes of each task."""
    temperature: float = 1.0
    """Sampling temperature."""
    steps_per_round: int = 4
    """How often so many tasks are rolled out in a round."""
    min_score: float = 1.0
    """Episodes with at least this score are learned from."""


@dataclass
class LearnConfig:
    """How a round learns."""

    start: Literal["base", "latest"] = "base"
    """The model that each round begins with: the one before the first round, or that of the round before."""
    epochs: int = 1
    """Passes over the oracle's episodes and all that were kept so far."""
    batch_size: int = 8
    """Episodes per optimiser step."""


@dataclass
class EvolConfig(TrainingConfig):
    """A run of rounds: explore, keep what succeeded, learn from it."""

    command: ClassVar[str] = "evol"
    longer: ClassVar[str] = "rounds"

    run_dir: str = "runs/evol"
    """Folder of the run; it must not hold another run unless resume is set."""
    horizon: Annotated[int | dict[str, Any], Yaml] = 20
    """Turns per episode when exploring: a number, or a schedule over the rounds such as
    {kind: linear, start: 4, increment: 2, every: 1, cap: 10} or {kind: staged, stages: [[0, 4], [0.5, 8]]}."""
    rounds: int = 3
    """Rounds."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: ExploreConfig = field(default_factory=ExploreConfig)
    learn: LearnConfig = field(default_factory=LearnConfig)
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(lr=1e-5, warmup_steps=10))

    @property
    def oracle_tasks(self) -> int:
        """Those of the warm start."""
        return self.warm_start.tasks if self.warm_start.kind == "oracle" else 0

    @property
    def groups(self) -> tuple[int, int]:
        """Those between two checkpoints."""
        return self.rollout.tasks_per_step, self.rollout.samples_per_task

    @property
    def total_steps(self) -> int:
        """A schedule counts rounds."""
        return self.rounds


@dataclass
class EvalConfig(RunConfig):
    """An evaluation."""

    command: ClassVar[str] = "eval"

    run_dir: str = "runs/eval"
    """Folder for the results."""
    policy: Literal["model", "oracle", "random"] = "model"
    """Who acts: the model; the scenario's oracle; or random choice among the available actions."""
    evaluate: HeldOutConfig = field(default_factory=lambda: HeldOutConfig(tasks=0, samples=1))


KINDS: dict[str, type[RunConfig]] = {
    kind.command: kind for kind in (Config, SFTConfig, DPOConfig, EvolConfig, EvalConfig)
}
"""By command."""
