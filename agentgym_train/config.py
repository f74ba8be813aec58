"""The configuration of a run: typed, checked at start, the same on the command line and in YAML recipes."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro
import yaml

RECIPES = Path(__file__).parent / "recipes"


class ConfigError(ValueError):
    """A configuration is not accepted; the message names the key, what was given and what is accepted."""


_MOST_LEVELS = 32  # of a value inside another


def _parse_yaml(text: str) -> Any:
    """Read plain data, which an anchor may not make endless.

    Raises:
        ValueError: If it cannot be read; the message is one line.
    """
    try:
        data = yaml.safe_load(text)
        _check_levels(data, _MOST_LEVELS)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as a date that does not exist
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"has more than {_MOST_LEVELS} levels, or an anchor that holds itself") from error
    return data


def _check_levels(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_levels(entry, left - 1)


def _from_yaml(args: list[str]) -> Any:
    try:
        return _parse_yaml(args[0])
    except ValueError as error:
        raise ValueError(f"{args[0]!r} {error}") from error


def _to_yaml(value: Any) -> list[str]:
    return [yaml.safe_dump(_plain(value), default_flow_style=True).removesuffix("\n...\n").strip()]


def _tasks_from_yaml(args: list[str]) -> tuple[TaskConfig, ...]:
    return cast("tuple[TaskConfig, ...]", _build(tuple[TaskConfig, ...], _from_yaml(args), "tasks"))


# A value written as YAML on the command line, e.g. --horizon '{kind: linear, start: 4, ...}'.
_Yaml = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=_from_yaml,
    is_instance=lambda _: True,
    str_from_instance=_to_yaml,
)
_TasksYaml = tyro.constructors.PrimitiveConstructorSpec(
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
    options: Annotated[dict[str, Any], _Yaml] = field(default_factory=dict)
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
class RolloutConfig:
    """How episodes are sampled."""

    tasks_per_step: int = 4
    """Groups per step."""
    samples_per_task: int = 8
    """Trajectories per group."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_reply_tokens: int = 48
    """Largest number of sampled tokens a turn."""
    max_context: int = 2048
    """Largest number of tokens of an episode."""
    max_parallel: int = 64
    """Largest number of environments at a time."""
    env_workers: int = 1
    """Processes that the environments are divided among."""
    deterministic: bool = False
    """Wait for all environments before each turn: runs repeat to the last bit, but the slowest one sets the pace."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Weights of the sampling engine."""


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
    """Upper clip range of the probability ratio."""
    importance_cap: float = 2.0
    """Largest weight that corrects for the difference between engine and trainer."""
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
    """Largest norm of the gradient."""
    token_budget: int = 1024
    """Largest number of tokens in a packed row (memory grows with it)."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Mixed precision of the update; the weights stay in float32."""


@dataclass
class EvaluateConfig:
    """Evaluation on held-out tasks; its horizon does not follow the curriculum."""

    tasks: int = 32
    """Held-out tasks."""
    samples: int = 4
    """Episodes per task."""
    horizon: int = 20
    """Largest number of turns, the same at every evaluation."""
    temperature: float = 1.0
    """Sampling temperature."""
    at_start: bool = True
    """Evaluate before the first step (after the warm start)."""
    every: int = 0
    """Steps between evaluations during training; 0 means none."""


@dataclass
class Config:
    """A training run."""

    run_dir: str = "runs/train"
    """Folder of the run; it must not hold another run unless resume is set."""
    seed: int = 0
    """Seed of everything random in the run."""
    steps: int = 100
    """Policy updates."""
    horizon: Annotated[int | dict[str, Any], _Yaml] = 20
    """Turns per episode during training: a number, or a schedule such as
    {kind: linear, start: 4, increment: 2, every: 10, cap: 10}, {kind: staged, stages: [[0, 4], [0.5, 8]]} or
    {kind: adaptive, start: 4, increment: 2, cap: 10, window: 20}, which grows once success has settled."""
    checkpoint_every: int = 10
    """Steps between checkpoints (one is also written at the end and on Ctrl-C or SIGTERM)."""
    keep_best: bool = False
    """Keep the model of the best evaluation during or after training in the folder `best`, beside the newest."""
    stall_seconds: int = 300
    """Say what the run waits for when nothing has moved for so long; 0 never does."""
    wandb: str = ""
    """Project of Weights & Biases to log to, beside TensorBoard; empty for none."""
    max_error_share: float = 0.25
    """Largest share of a step's episodes that may end in an error before the run stops."""
    env: EnvConfig = field(default_factory=EnvConfig)
    tasks: Annotated[tuple[TaskConfig, ...], _TasksYaml] = ()
    """Several scenarios in one run, instead of `env`: a list such as
    [{id: AgentGym/TextCraft-v0, weight: 2, horizon: 10}, {id: AgentGym/BabyAI-v0, subsets: [GoTo]}].
    An entry takes what `env` takes, and name, weight, horizon, evaluate_horizon. Numbers of tasks, such as
    warm_start.tasks and evaluate.tasks, are those of each scenario."""
    model: ModelConfig = field(default_factory=ModelConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `from_dict` takes it."""
        plain: dict[str, Any] = yaml.safe_load(yaml.safe_dump(_plain(self)))
        return plain

    @property
    def scenarios(self) -> tuple[TaskConfig, ...]:
        """What `tasks` lists, or `env` alone."""
        return self.tasks or (TaskConfig(**vars(self.env)),)


def from_dict(data: dict[str, Any]) -> Config:
    """Build a configuration from plain data.

    Raises:
        ConfigError: If a key is unknown or a value has the wrong type.
    """
    config: Config = _build(Config, data, "")
    return config


def load_recipe(name: str) -> Config:
    """Load a recipe.

    Args:
        name: Name of a recipe of the package (see `recipe_names`), or path of a YAML file.

    Raises:
        ConfigError: If there is none, or its content is not accepted.
    """
    path = RECIPES / f"{name}.yaml" if name in recipe_names() else Path(name)
    try:
        data = _read(path)
    except OSError as error:
        raise ConfigError(
            f"--recipe {name!r} is neither a recipe of the package ({', '.join(recipe_names())}) nor a YAML file "
            f"({error.strerror})."
        ) from error
    return from_dict({} if data is None else data)


def stored_config(run_dir: Path) -> Config:
    """Read the configuration of the run in a folder.

    Raises:
        ConfigError: If there is none, or it is not accepted.
    """
    try:
        return from_dict(_read(run_dir / "config.yaml"))
    except OSError as error:
        raise ConfigError(f"there is no run to resume in {run_dir}: config.yaml cannot be read ({error}).") from error


def recipe_names() -> list[str]:
    """Names of the package's recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _read(path: Path) -> Any:
    """Read a YAML file."""
    try:
        return _parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}).") from error
    except ValueError as error:
        raise ConfigError(f"{path} {error}.") from error


def _build(kind: Any, value: Any, where: str) -> Any:
    """Check plain data against a type and turn it into an instance."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{where or 'the configuration'} must be a mapping, not {value!r}.")
        hints = typing.get_type_hints(kind)
        names = [entry.name for entry in dataclasses.fields(kind)]
        prefix = f"{where}." if where else ""
        for key in value:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f" Did you mean {prefix}{near[0]}?" if near else ""
                raise ConfigError(f"unknown key {prefix}{key}; accepted are {', '.join(names)}.{hint}")
        return kind(**{key: _build(hints[key], entry, f"{prefix}{key}") for key, entry in value.items()})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return _build(option, value, where)
            except ConfigError:
                continue
        raise ConfigError(f"{where}={value!r} is not accepted; give one of: {_named(kind)}.")
    if origin is Literal:
        if value in args:
            return value
        raise ConfigError(f"{where}={value!r} is not accepted; give one of: {', '.join(map(str, args))}.")
    if origin is tuple and isinstance(value, list | tuple):
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(kinds) != len(value):
            raise ConfigError(f"{where} takes {len(kinds)} values, not {value!r}.")
        return tuple(_build(kind, entry, where) for kind, entry in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return value
    if kind is float and isinstance(value, str):  # YAML reads 5e-5 as a string
        try:
            return float(value)
        except ValueError:
            pass
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}={value!r} is not accepted; give {_named(kind)}.")


def _named(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_named, typing.get_args(kind)))
    return getattr(kind, "__name__", str(kind))


def _plain(value: Any) -> Any:
    """Return the same as mappings and lists, as YAML and `from_dict` take them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
