"""The policy: a language model with its tokenizer, its optimiser and the engine that samples with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.checks import pick_device
from agentgym_train.config import ConfigError, RunConfig, TrainingConfig
from agentgym_train.engines import Engine, make_engine
from agentgym_train.lora import AdapterError, add_adapter, load_adapter
from agentgym_train.memory import recompute_layers
from agentgym_train.models import ModelError, check_vocabulary, load_model, load_tokenizer, stop_tokens
from agentgym_train.packing import Row, pack
from agentgym_train.run_folder import load_state
from agentgym_train.self_check import check_model, packing_problem
from agentgym_train.trajectory import Trajectory
from agentgym_train.update import make_optimiser


@dataclass
class Sampler:
    """What samples replies.

    Attributes:
        tokenizer: The model's tokenizer.
        chat: Renders prompts and observations as its tokens.
        engine: Samples, with weights of its own.
    """

    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    engine: Engine


@dataclass
class Policy(Sampler):
    """What is trained, and what samples with it.

    Attributes:
        model: The trained model; perhaps with an adapter, which then is what is trained.
        optimiser: Holds the moment estimates.
        token_budget: Largest number of tokens in a packed row.
        packing_problem: Why prompts cannot be shared in packed rows; empty if they can.
    """

    model: PreTrainedModel
    optimiser: torch.optim.AdamW
    token_budget: int
    packing_problem: str

    def sync(self) -> None:
        """Let the engine sample with the weights as they are now."""
        self.engine.update_weights(self.model)

    def pack(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        """Pack trajectories into rows that the model can take."""
        return pack(trajectories, self.token_budget, share_prompts=not self.packing_problem)


def load_sampler(config: RunConfig) -> Sampler:
    """Load the configuration's model into an engine, to sample only.

    Raises:
        ConfigError, ModelError, ChatTemplateError, EngineError: If something is missing or cannot be used.
    """
    model, tokenizer, chat = _load(config, None)
    return Sampler(tokenizer, chat, _engine(config, model, tokenizer, chat, training=False))


def load_policy(config: TrainingConfig, checkpoint: Path | None) -> Policy:
    """Load the policy from the configuration's model or, optimiser included, from a checkpoint.

    Raises:
        ConfigError, ModelError, ChatTemplateError, EngineError: If something is missing or cannot be used.
    """
    model, tokenizer, chat = _load(config, checkpoint)
    check_model(model, config.model.path)
    problem = packing_problem(model)
    if config.model.lora_rank:
        _put_in_adapter(model, config, checkpoint)
    optimiser = make_optimiser(model, config.optimiser)
    if checkpoint is not None:
        load_state(optimiser, checkpoint, "optimiser", model.device)
    engine = _engine(config, model, tokenizer, chat, training=True)
    if config.optimiser.gradient_checkpointing:
        recompute_layers(model)
    return Policy(tokenizer, chat, engine, model, optimiser, config.optimiser.token_budget, problem)


def _load(config: RunConfig, checkpoint: Path | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Chat]:
    source = str(checkpoint or config.model.path)
    # A checkpoint's tokenizer has the template already.
    tokenizer = load_tokenizer(source, "" if checkpoint else config.model.chat_template)
    if isinstance(config, TrainingConfig) and config.model.lora_rank:
        source = config.model.path  # a checkpoint holds the adapter alone
    model = load_model(source, pick_device(config), getattr(torch, config.model.dtype))
    check_vocabulary(model, tokenizer, config.model.path)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and config.rollout.max_context > positions:
        raise ConfigError(
            f"rollout.max_context={config.rollout.max_context} is more than the model's {positions} positions."
        )
    return model, tokenizer, Chat(tokenizer, stop_tokens(model))


def _put_in_adapter(model: PreTrainedModel, config: TrainingConfig, checkpoint: Path | None) -> None:
    try:
        if checkpoint is None:
            add_adapter(model, config.model.lora_rank, config.model.lora_alpha, config.seed)
        else:
            load_adapter(model, checkpoint)
    except AdapterError as error:
        raise ModelError(f"model.lora_rank={config.model.lora_rank}: {error}") from error


def _engine(
    config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chat: Chat, training: bool
) -> Engine:
    rollout = config.rollout
    return make_engine(
        config.engine,
        model,
        tokenizer,
        chat.stop_tokens,
        precision=rollout.precision,
        max_context=rollout.max_context,
        max_parallel=rollout.max_parallel,
        training=training,
    )
