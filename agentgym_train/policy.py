"""The policy: a language model with its tokenizer, its optimiser and the engine that samples with it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.checks import pick_device
from agentgym_train.config import Config, ConfigError
from agentgym_train.engines import Engine
from agentgym_train.engines.hf import HFEngine
from agentgym_train.models import ModelError, load_model, load_tokenizer, stop_tokens
from agentgym_train.run_folder import load_state
from agentgym_train.self_check import check_packing
from agentgym_train.update import make_optimiser


@dataclass
class Policy:
    """What is trained, and what samples with it.

    Attributes:
        model: The trained model, in float32.
        tokenizer: Its tokenizer.
        chat: Renders prompts and observations as its tokens.
        optimiser: Holds the moment estimates.
        engine: Samples replies with a copy of the model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    optimiser: torch.optim.AdamW
    engine: Engine

    def sync(self) -> None:
        """Let the engine sample with the weights as they are now."""
        self.engine.update_weights(self.model)


def load_policy(config: Config, checkpoint: Path | None) -> Policy:
    """Load the policy from the configuration's model or, optimiser included, from a checkpoint.

    Raises:
        ConfigError, ModelError, ChatTemplateError: If something is missing or cannot be used.
    """
    source = str(checkpoint or config.model.path)
    # A checkpoint's tokenizer has the template already.
    tokenizer = load_tokenizer(source, "" if checkpoint else config.model.chat_template)
    model = load_model(source, pick_device(config))
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and config.rollout.max_context > positions:
        raise ConfigError(
            f"rollout.max_context={config.rollout.max_context} is more than the model's {positions} positions."
        )
    chat = Chat(tokenizer, stop_tokens(model))
    optimiser = make_optimiser(model, config.optimiser)
    if checkpoint is not None:
        load_state(optimiser, checkpoint, "optimiser", model.device)
    try:
        engine = HFEngine(_copy(model, config.rollout.precision), chat.stop_tokens)
    except ValueError as error:
        raise ModelError(f"model.path={config.model.path!r}: {error}") from error
    check_packing(model, config.model.path)
    return Policy(model, tokenizer, chat, optimiser, engine)


def _copy(model: PreTrainedModel, precision: str) -> PreTrainedModel:
    own = copy.deepcopy(model).requires_grad_(False)
    if precision == "bfloat16":
        for parameter in own.parameters():  # not the buffers: rounded rotary frequencies drift with distance
            parameter.data = parameter.data.to(torch.bfloat16)
    return own
