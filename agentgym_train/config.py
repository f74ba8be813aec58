"""The configuration of a run: typed, checked at start, the same on the command line and in YAML recipes."""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import tyro
import yaml

from agentgym_train.plain_data import ConfigError as ConfigError
from agentgym_train.plain_data import build, parse_yaml, plain, read_yaml

RECIPES = Path(__file__).parent / "recipes"


def _from_yaml(args: list[str]) -> Any:
    try:
        return parse_yaml(args[0])
    except ValueError as error:
        raise ValueError(f"{args[0]!r} {error}") from error


def _to_yaml(value: Any) -> list[str]:
    return [yaml.safe_dump(plain(value), default_flow_style=True).removesuffix("\n...\n").strip()]


def _tasks_from_yaml(args: list[str]) -> tuple[TaskConfig, ...]:
    return cast("tuple[TaskConfig, ...]", build(tuple[TaskConfig, ...], _from_yaml(args), "tasks"))


# A value written as YAML on the command line, e.g. --horizon '{kind: linear, start: 4, ...}'.
Yaml = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=_from_yaml,
    is_instance=lambda _: True,
    str_from_instance=_to_yaml,
)
TasksYaml = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=_tasks_from_yaml,
    is_instance=lambda _: True,
    str_from_instance=_to_yaml,
)


@dataclass
class EnvConfig:
    """Which tasks are trained on."""

    id: str = "AgentGym/TextCraft-v0"
    """Registered environment id."""
    subsets: tuple[str, ...] = ()
    """Subsets that tasks are taken from; empty means all."""
    options: Annotated[dict[str, Any], Yaml] = field(default_factory=dict)
    """Further keyword arguments of the environment, as a YAML mapping."""
    formats: tuple[str, ...] = ("tags", "react", "fence", "bare")
    """Reply formats that the action parser accepts."""
    reply_instruction: str = ""
    """Added to the environment's instruction in the system message: how to write a reply."""


@dataclass
class TaskConfig(EnvConfig):
    """One scenario of a run over several."""

    name: str = ""
    """How metrics call it; by default the id without AgentGym/ and its version."""
    weight: float = 1.0
    """Its share of the groups, relative to the weights of the others."""
    horizon: int | dict[str, Any] = 0
    """Turns per episode during training, a number or a schedule as in the run's `horizon`; 0 takes that one."""
    evaluate_horizon: int = 0
    """Largest number of turns at evaluations; 0 takes `evaluate.horizon`."""

    @property
    def title(self) -> str:
        """How metrics call it."""
        return self.name or self.id.rpartition(":")[2].removeprefix("AgentGym/").rpartition("-v")[0]


@dataclass
class ModelConfig:
    """The language model."""

    path: str = "smollm2-135m-instruct"
    """Folder or hub id of a causal language model; smollm2-135m-instruct is the demo's (make demo-model)."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template; empty keeps it."""
    device: str = "auto"
    """Device such as cpu or cuda; auto takes the accelerator if there is one."""
    lora_rank: int = 0
    """Rank of an adapter that is trained instead of the weights (LoRA; needs the extra `lora`); 0 trains all
    weights."""
    lora_alpha: float = 32.0
    """The adapter's change is scaled by lora_alpha / lora_rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights; bfloat16 halves them and is for those under an adapter, which stays in float32."""
    offload_reference: bool = False
    """Keep the reference model on the CPU while it is not asked. With an adapter there is no such model: the reference
    is the trained model with the adapter that it had after the warm start."""


@dataclass
class WarmStartConfig:
    """Supervised training on the oracle's episodes before reinforcement learning."""

    kind: Literal["oracle", "none"] = "oracle"
    """oracle, or none for the paper's setting without a warm start (needs a model that can already act)."""
    tasks: int = 48
    """Tasks, one oracle episode each; none of them is trained on or tested afterwards."""
    epochs: int = 1
    """Passes over the episodes."""
    batch_size: int = 4
    """Episodes per optimiser step."""
    lr: float = 5e-5
    """Learning rate (reached after a tenth of the steps)."""


@dataclass
class AgentConfig:
    """How the model is asked to act; docs/agents.md describes each choice."""

    name: str = "direct"
    """direct, react, plan-then-act, reflect-after-failure, or module:attribute for a class of your own."""
    options: Annotated[dict[str, Any], Yaml] = field(default_factory=dict)
    """Keyword arguments of the agent, as a YAML mapping, such as {trials: 3}."""
    last_turns: int = 0
    """Turns that a prompt shows beside the task statement; 0 shows the whole history."""
    constrained: bool = False
    """Sample among the actions that the environment lists, and nothing else (scenarios that can list them)."""


@dataclass
class EngineConfig:
    """What samples the replies; docs/engines.md compares the kinds."""

    kind: Literal["hf", "vllm", "server"] = "hf"
    """hf: the model itself, runs anywhere. vllm: vLLM in this process (make vllm). server: running vLLM servers."""
    urls: tuple[str, ...] = ()
    """server: address of each replica, such as http://127.0.0.1:8000."""
    weights_dir: str = ""
    """server: folder under which the servers read new weights; the path must be the same for them."""
    memory_share: float = 0.3
    """vllm: share of the accelerator's memory (without one, of the main memory) for weights and cache."""
    timeout_s: float = 300.0
    """Longest wait for a reply, for new weights, and for a server's answer, in seconds."""


@dataclass
class SamplingConfig:
    """How episodes are sampled."""

    max_reply_tokens: int = 48
    """Largest number of sampled tokens a turn."""
    max_context: int = 2048
    """Largest number of tokens of an episode; with agent.last_turns, of a prompt and its reply."""
    max_parallel: int = 64
    """Largest number of environments at a time."""
    env_workers: int = 1
    """Processes that the environments are divided among."""
    deterministic: bool = False
    """Wait for all environments before each turn: runs repeat to the last bit, but the slowest one sets the pace."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Weights of the sampling engine."""


@dataclass
class RolloutConfig(SamplingConfig):
    """How groups of episodes are sampled."""

    tasks_per_step: int = 4
    """Groups per step."""
    samples_per_task: int = 8
    """Trajectories per group."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_lag: int = 0
    """Steps that a group may be finished late, beside those of later steps; 0 lets every step wait for its own."""
    late_share: float = 0.25
    """With max_lag: share of a step's groups that need not be finished in it."""


@dataclass
class AlgorithmConfig:
    """The online algorithm; docs/training.md has the formulas."""

    name: Literal["grpo", "rloo", "reinforce++", "ppo"] = "grpo"
    """How advantages are made: against the group's mean (grpo), against the mean of the others in it (rloo), from
    the batch's normalised returns (reinforce++), or with a critic (ppo)."""
    epochs: int = 1
    """Optimiser steps on each batch of rollouts."""
    clip_low: float = 0.2
    """Lower clip range of the probability ratio."""
    clip_high: float = 0.2
    """Upper clip range of the probability ratio; inf for no limit."""
    importance_cap: float = 2.0
    """Largest weight that corrects for the difference between engine and trainer; inf for no limit."""
    engine_tolerance: float = 0.1
    """Largest mean difference, in nats, between the log-probabilities of engine and trainer when training begins; a
    run that exceeds it is stopped, unless it is inf. In bfloat16 0.01 to 0.03 are usual."""
    kl_coef: float = 1e-3
    """Weight of the divergence from the reference model; 0 leaves it out."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence."""
    normalise_std: bool = True
    """grpo: divide advantages by the group's standard deviation."""
    resample_rounds: int = 0
    """grpo, rloo: while fewer than rollout.tasks_per_step groups have differing rewards, roll out as many tasks
    again, at most this many times (dynamic sampling)."""
    discount: float = 1.0
    """ppo: discount of a token."""
    trace: float = 0.95
    """ppo: lambda of the advantage estimates."""
    critic_lr: float = 1e-5
    """ppo: learning rate of the critic."""
    aggregation: Literal["token", "sequence"] = "token"
    """Whether every token or every trajectory counts the same in the loss."""


@dataclass
class OptimiserConfig:
    """AdamW."""

    lr: float = 1e-6
    """Learning rate."""
    warmup_steps: int = 2
    """Steps of linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the moment estimates."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient; inf for no limit."""
    token_budget: int = 1024
    """Largest number of tokens in a packed row (memory grows with it)."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Mixed precision of the update; the weights stay in their type."""
    gradient_checkpointing: bool = False
    """Keep only what goes into each layer, and compute the rest again for the gradient: less memory, more time."""


@dataclass
class HeldOutConfig:
    """Which held-out tasks are played, and how."""

    tasks: int = 32
    """Held-out tasks; with `agentgym eval`, 0 plays them all."""
    samples: int = 4
    """Episodes per task."""
    horizon: int = 20
    """Largest number of turns."""
    temperature: float = 1.0
    """Sampling temperature."""


@dataclass
class EvaluateConfig(HeldOutConfig):
    """Evaluation on held-out tasks; its horizon does not follow the curriculum."""

    at_start: bool = True
    """Evaluate before the first step (after the warm start)."""
    every: int = 0
    """Steps between evaluations during training; 0 means none."""


@dataclass
class RunConfig:
    """What every kind of run has."""

    command: ClassVar[str]
    """Which `agentgym` command it is for; a file names it under the key `command`."""

    run_dir: str = "runs/run"
    """Folder of the run; it must not hold another run unless resume is set."""
    seed: int = 0
    """Seed of everything random in the run."""
    stall_seconds: int = 300
    """Say what the run waits for when nothing has moved for so long; 0 never does."""
    wandb: str = ""
    """Project of Weights & Biases to log to, beside TensorBoard; empty for none."""
    max_error_share: float = 0.25
    """Largest share of a step's episodes that may end in an error before the run stops."""
    env: EnvConfig = field(default_factory=EnvConfig)
    tasks: Annotated[tuple[TaskConfig, ...], TasksYaml] = ()
    """Several scenarios in one run, instead of `env`: a list such as
    [{id: AgentGym/TextCraft-v0, weight: 2, horizon: 10}, {id: AgentGym/BabyAI-v0, subsets: [GoTo]}].
    An entry takes what `env` takes, and name, weight, horizon, evaluate_horizon. Numbers of tasks, such as
    warm_start.tasks and evaluate.tasks, are those of each scenario."""
    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: SamplingConfig = field(default_factory=SamplingConfig)
    evaluate: HeldOutConfig = field(default_factory=HeldOutConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `from_dict` takes it."""
        return {"command": self.command, **yaml.safe_load(yaml.safe_dump(plain(self)))}

    @property
    def scenarios(self) -> tuple[TaskConfig, ...]:
        """What `tasks` lists, or `env` alone."""
        return self.tasks or (TaskConfig(**vars(self.env)),)

    @property
    def oracle_tasks(self) -> int:
        """Training tasks of each scenario that are kept for the oracle, and not explored."""
        return 0

    @property
    def imitates_oracle(self) -> bool:
        """Whether the oracle's episodes are trained on."""
        return self.oracle_tasks > 0

    @property
    def groups(self) -> tuple[int, int]:
        """How many training tasks are rolled out at a time, and how many episodes of each."""
        return 0, 0


@dataclass
class TrainingConfig(RunConfig):
    """What every kind of run that changes a model has."""

    longer: ClassVar[str]
    """The number that a finished run may be continued to more of."""

    horizon: Annotated[int | dict[str, Any], Yaml] = 20
    """Turns per episode during training: a number, or a schedule such as
    {kind: linear, start: 4, increment: 2, every: 10, cap: 10}, {kind: staged, stages: [[0, 4], [0.5, 8]]} or
    {kind: adaptive, start: 4, increment: 2, cap: 10, window: 20}, which grows once success has settled; its window is
    at least 4."""
    checkpoint_every: int = 10
    """Steps between checkpoints (one is also written at the end and on Ctrl-C or SIGTERM)."""
    keep_best: bool = False
    """Keep the model of the best evaluation during or after training in the folder `best`, beside the newest."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    @property
    def total_steps(self) -> int:
        """Steps over which a staged horizon is spread; 1 while it is not known yet."""
        return 1


@dataclass
class Config(TrainingConfig):
    """A run of online reinforcement learning."""

    command: ClassVar[str] = "train"
    longer: ClassVar[str] = "steps"

    run_dir: str = "runs/train"
    """Folder of the run; it must not hold another run unless resume is set."""
    steps: int = 100
    """Policy updates."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)

    @property
    def oracle_tasks(self) -> int:
        """Those of the warm start."""
        return self.warm_start.tasks if self.warm_start.kind == "oracle" else 0

    @property
    def groups(self) -> tuple[int, int]:
        """Those of a step."""
        return self.rollout.tasks_per_step, self.rollout.samples_per_task

    @property
    def total_steps(self) -> int:
        """All steps."""
        return self.steps


K = TypeVar("K", bound=RunConfig)


@typing.overload
def from_dict(data: dict[str, Any]) -> Config: ...
@typing.overload
def from_dict(data: dict[str, Any], kind: type[K]) -> K: ...


def from_dict(data: dict[str, Any], kind: type[RunConfig] = Config) -> RunConfig:
    """Build the configuration of a kind of run from plain data.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type, or the data are for another kind.
    """
    if isinstance(data, dict) and (given := data.get("command", kind.command)) != kind.command:
        raise ConfigError(f"command: {given!r} is for `agentgym {given}`, not for `agentgym {kind.command}`.")
    own = {key: value for key, value in data.items() if key != "command"} if isinstance(data, dict) else data
    config: RunConfig = build(kind, own, "")
    return config


def adopt(data: dict[str, Any], kind: type[K]) -> K:
    """Build the configuration of a kind of run from what it has in common with that of another kind.

    Raises:
        ConfigError: If a value has the wrong type.
    """
    config: K = build(kind, _common(data, kind), "")
    return config


@typing.overload
def load_recipe(name: str) -> Config: ...
@typing.overload
def load_recipe(name: str, kind: type[K]) -> K: ...


def load_recipe(name: str, kind: type[RunConfig] = Config) -> RunConfig:
    """Load a recipe.

    Args:
        name: Name of a recipe of the package (see `recipe_names`), or path of a YAML file.
        kind: Which kind of run it must be for.

    Raises:
        ConfigError: If there is none, or its content is not accepted.
    """
    return from_dict(recipe_data(name), kind)


def recipe_data(name: str) -> Any:
    """Read a recipe (see `load_recipe`) as plain data.

    Raises:
        ConfigError: If there is none, or it is not valid YAML.
    """
    path = RECIPES / f"{name}.yaml" if name in recipe_names() else Path(name)
    try:
        data = read_yaml(path)
    except OSError as error:
        raise ConfigError(
            f"--recipe {name!r} is neither a recipe of the package ({', '.join(recipe_names())}) nor a YAML file "
            f"({error.strerror})."
        ) from error
    return {} if data is None else data


def stored_config(run_dir: Path, kind: type[K]) -> K:
    """Read the configuration of the run in a folder.

    Raises:
        ConfigError: If there is none, it is not accepted, or the run is of another kind.
    """
    data = stored_data(run_dir)
    if isinstance(data, dict) and (command := data.get("command", "train")) != kind.command:
        raise ConfigError(
            f"{run_dir} holds a run of `agentgym {command}`; continue it with: agentgym {command} --resume {run_dir}"
        )
    return from_dict(data, kind)


def stored_data(run_dir: Path) -> Any:
    """Read the configuration of the run in a folder as plain data.

    Raises:
        ConfigError: If there is none, or it is not valid YAML.
    """
    try:
        return read_yaml(run_dir / "config.yaml")
    except OSError as error:
        raise ConfigError(f"there is no run in {run_dir}: config.yaml cannot be read ({error}).") from error


def recipe_names(command: str = "") -> list[str]:
    """Names of the package's recipes; if a command is given, of those for it."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml") if command in ("", _command_of(path)))


def _command_of(recipe: Path) -> str:
    found = re.search(r"^command: *(\w+)", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "train"


def _common(data: Any, kind: type) -> Any:
    """What of a mapping are fields of a dataclass, and of those that are mappings in turn."""
    if not (isinstance(data, dict) and dataclasses.is_dataclass(kind)):
        return data
    hints = typing.get_type_hints(kind)
    names = {entry.name for entry in dataclasses.fields(kind)} & data.keys()
    return {name: _common(data[name], hints[name]) for name in names}
