"""Runs that train an adapter: small checkpoints, the same result when resumed, and a model that anybody can load."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgym_train.checks import check_config
from agentgym_train.config import ConfigError, from_dict
from agentgym_train.loop import train
from agentgym_train.models import load_model
from tests.train.test_runs import rows_of, settings, without_times

LORA = {"lora_rank": 4, "lora_alpha": 8.0}
CHANGES = {"horizon": 3, "model": LORA, "evaluate": {"every": 0}, "optimiser": {"gradient_checkpointing": True}}


def adapter_of(run: Path) -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    return load_file(checkpoint / "adapter_model.safetensors")


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_resumed_run_with_an_adapter_goes_on_exactly(tiny_path: Path, tmp_path: Path, name: str) -> None:
    changes = {**CHANGES, "algorithm": {"name": name, "critic_lr": 1e-3}}
    straight, halted = tmp_path / "straight", tmp_path / "halted"
    train(from_dict(settings(tiny_path, straight, steps=4, **copy.deepcopy(changes))))
    train(from_dict(settings(tiny_path, halted, steps=2, **copy.deepcopy(changes))))
    train(from_dict(settings(tiny_path, halted, steps=4, **copy.deepcopy(changes))), resume=True)
    rows = [[row for row in without_times(rows_of(run)) if row["phase"] == "train"] for run in (straight, halted)]
    assert rows[0] == rows[1]
    assert rows[0][-1]["kl"] > 0
    one, other = adapter_of(straight), adapter_of(halted)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    (checkpoint,) = (straight / "checkpoints").iterdir()
    assert not (checkpoint / "model.safetensors").exists()
    load_model(str(checkpoint))  # merged into the model that it was trained on


def test_weights_in_bfloat16_are_refused_without_an_adapter(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.dtype=bfloat16 is not accepted without an adapter"):
        check_config(from_dict(settings(tiny_path, tmp_path / "run", model={"dtype": "bfloat16"})))
    check_config(from_dict(settings(tiny_path, tmp_path / "run", model={"dtype": "bfloat16", **LORA})))
