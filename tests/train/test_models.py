"""Models that would be trained wrongly are refused, before anything is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from agentgym_train.models import ModelError, check_vocabulary, load_model, load_tokenizer
from agentgym_train.self_check import check_model, packing_problem


def test_missing_weights_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_path, folder)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"the files lack .* of the model's weights"):
        load_model(str(folder))


def test_damaged_weights_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_path, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder))


def test_a_tokenizer_with_more_ids_than_the_model_embeds_is_refused(tiny_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_path)), load_tokenizer(str(tiny_path))
    check_vocabulary(model, tokenizer, "tiny")
    tokenizer.add_tokens([f"<new {number}>" for number in range(model.config.vocab_size)])
    with pytest.raises(ModelError, match=r"model\.path='tiny': the tokenizer has ids up to \d+, but the model embeds"):
        check_vocabulary(model, tokenizer, "tiny")


def test_dropout_is_off(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_model(str(tmp_path)).train()
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert rates
    assert not any(rates)


def test_a_sound_model_takes_packed_rows(tiny_path: Path) -> None:
    model = load_model(str(tiny_path))
    check_model(model, "tiny")
    assert packing_problem(model) == ""
    assert packing_problem(load_model(str(tiny_path), dtype=torch.bfloat16)) == ""


def test_a_model_that_ignores_what_attends_to_what_is_found_out(tiny_path: Path) -> None:
    model = load_model(str(tiny_path))
    model.set_attn_implementation("eager")  # knows nothing of spans
    assert "does not know packed rows" in packing_problem(model)


def test_dynamic_rotary_embeddings_are_refused() -> None:
    config = LlamaConfig(
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_size=16,
        intermediate_size=32,
        vocab_size=50,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    )
    with torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="dynamic"):
        check_model(model, "ntk")
