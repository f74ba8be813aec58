"""An adapter is trained alone, acts in the engine as in the trainer, and comes back from a checkpoint."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentgym_train.chat import Chat
from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.critic import Critic
from agentgym_train.engines import Request
from agentgym_train.engines.hf import HFEngine
from agentgym_train.logprobs import token_logprobs
from agentgym_train.lora import (
    AdapterError,
    adapter_as,
    adapter_weights,
    add_adapter,
    load_adapter,
    merge_adapter,
    plain_weights,
    restart_adapter,
)
from agentgym_train.memory import recompute_layers, set_update_mode
from agentgym_train.models import ModelError, load_model, save_model
from agentgym_train.packing import Row, pack
from agentgym_train.update import make_optimiser, reference_logprobs, update_policy
from tests.train.test_packing import batch_of

ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5, 0.25, -0.25])
CONFIG = OptimiserConfig(lr=1e-2, precision="float32")


@pytest.fixture
def rows(chat: Chat) -> list[Row]:
    return pack(batch_of(chat), 100_000)


@pytest.fixture
def adapted(model: PreTrainedModel) -> PreTrainedModel:
    add_adapter(model, rank=4, alpha=8.0, seed=0)
    return model


def values(model: PreTrainedModel, rows: list[Row]) -> Tensor:
    return reference_logprobs(model, rows, 1.0, "float32", lambda: None)[0]


def take_step(model: PreTrainedModel, rows: list[Row], reference: list[Tensor] | None = None) -> dict[str, float]:
    return update_policy(
        model,
        make_optimiser(model, CONFIG),
        rows,
        [ADVANTAGES[row.owners] for row in rows],
        [10] * 6,
        reference,
        1.0,
        CONFIG.lr,
        AlgorithmConfig(),
        CONFIG,
        lambda: None,
    )


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(model: PreTrainedModel, rows: list[Row]) -> None:
    before = values(model, rows)
    add_adapter(model, rank=4, alpha=8.0, seed=0)
    torch.testing.assert_close(values(model, rows), before)
    base = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)
    take_step(model, rows)
    assert not torch.allclose(values(model, rows), before, atol=1e-3)
    for name, weight in model.named_parameters():
        if name in base:
            assert torch.equal(weight, base[name]), name


def test_the_first_weights_are_a_function_of_the_seed(tiny_path: Path) -> None:
    def first(seed: int) -> list[Tensor]:
        model = load_model(str(tiny_path))
        add_adapter(model, 4, 8.0, seed)
        return [p for name, p in model.named_parameters() if "lora_A" in name]

    state = torch.get_rng_state()
    one, again, other = first(0), first(0), first(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_engine_samples_with_the_adapter_merged_in(
    adapted: PreTrainedModel, rows: list[Row], engine: HFEngine, chat: Chat, tiny_path: Path
) -> None:
    take_step(adapted, rows)
    engine.update_weights(adapted)
    prompt = chat.prompt("Reply.", "write e")
    (reply,) = engine.generate([Request("one", prompt, 8, "seed")], 1.0)
    logits = adapted(input_ids=torch.tensor([prompt + reply.tokens])).logits[0, len(prompt) - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, torch.tensor(reply.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(reply.logprobs), own.detach(), atol=1e-4, rtol=1e-4)
    base = load_model(str(tiny_path))(input_ids=torch.tensor([prompt + reply.tokens])).logits[0, len(prompt) - 1 : -1]
    assert not torch.allclose(logits, base, atol=1e-2)  # else the engine might have the base's weights


def test_with_its_earlier_adapter_the_model_is_its_own_reference(
    adapted: PreTrainedModel, rows: list[Row], tmp_path: Path
) -> None:
    take_step(adapted, rows)
    before = values(adapted, rows)
    save_model(adapted, tmp_path)
    take_step(adapted, rows)
    after = values(adapted, rows)
    assert not torch.allclose(before, after, atol=1e-3)
    with adapter_as(adapted, adapter_weights(tmp_path, adapted.device)) as reference:
        reference_values = values(reference, rows)
    assert torch.equal(reference_values, before)
    assert torch.equal(values(adapted, rows), after)
    assert take_step(adapted, rows, [reference_values])["kl"] > 0


def test_an_adapter_begins_anew(adapted: PreTrainedModel, rows: list[Row]) -> None:
    before, weights = values(adapted, rows), [weight.detach().clone() for weight in adapted.parameters()]
    take_step(adapted, rows)
    restart_adapter(adapted, seed=0)
    assert torch.equal(values(adapted, rows), before)
    assert all(torch.equal(one, other) for one, other in zip(adapted.parameters(), weights, strict=True))


def test_an_adapter_that_does_not_fit_is_refused(adapted: PreTrainedModel, tiny_path: Path, tmp_path: Path) -> None:
    save_model(adapted, tmp_path)
    smaller = load_model(str(tiny_path))
    smaller.model.layers = smaller.model.layers[:1]
    with pytest.raises(AdapterError, match="the adapter of another model"):
        load_adapter(smaller, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(AdapterError, match="holds no adapter"):
        load_adapter(load_model(str(tiny_path)), tmp_path)
    with pytest.raises(ModelError, match="holds no adapter"):
        load_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not say which model it adapts"):
        load_model(str(tmp_path))


def test_a_missing_package_is_named_with_the_command(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(AdapterError, match=r"pip install 'agentgym-suite\[lora\]'"):
        add_adapter(model, 4, 8.0, seed=0)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers in an older way
def test_peft_reads_what_is_saved(adapted: PreTrainedModel, rows: list[Row], tiny_path: Path, tmp_path: Path) -> None:
    take_step(adapted, rows)
    save_model(adapted, tmp_path)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_path), tmp_path)
    tokens = torch.arange(3, 40)[None]
    torch.testing.assert_close(theirs(input_ids=tokens).logits, adapted(input_ids=tokens).logits, atol=1e-5, rtol=1e-5)


def test_a_checkpoint_holds_the_adapter_alone_and_is_trained_further(
    adapted: PreTrainedModel, rows: list[Row], tiny_path: Path, tmp_path: Path
) -> None:
    take_step(adapted, rows)
    save_model(adapted, tmp_path / "checkpoint")
    assert sum(file.stat().st_size for file in (tmp_path / "checkpoint").iterdir()) < 100_000
    again = load_model(str(tiny_path))
    load_adapter(again, tmp_path / "checkpoint")
    assert torch.equal(values(again, rows), values(adapted, rows))
    for model in (adapted, again):
        take_step(model, rows)
    for (name, one), (other_name, other) in zip(adapted.named_parameters(), again.named_parameters(), strict=True):
        assert (name, one.requires_grad) == (other_name, other.requires_grad)
        assert torch.equal(one, other)


def test_an_adapter_is_merged_into_an_ordinary_model(adapted: PreTrainedModel, rows: list[Row], tmp_path: Path) -> None:
    take_step(adapted, rows)
    before = values(adapted, rows)
    weights = {name: value.clone() for name, value in plain_weights(adapted)}
    merge_adapter(adapted)
    assert dict(adapted.named_parameters()).keys() == weights.keys()
    for name, weight in adapted.named_parameters():
        assert weight.requires_grad
        torch.testing.assert_close(weight, weights[name])
    torch.testing.assert_close(values(adapted, rows), before, atol=1e-5, rtol=1e-5)
    save_model(adapted, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(
        plain.get_parameter("model.layers.0.mlp.up_proj.weight"), weights["model.layers.0.mlp.up_proj.weight"]
    )


def test_a_saved_adapter_is_loaded_as_a_model(adapted: PreTrainedModel, rows: list[Row], tmp_path: Path) -> None:
    take_step(adapted, rows)
    save_model(adapted, tmp_path)
    loaded = load_model(str(tmp_path))
    torch.testing.assert_close(values(loaded, rows), values(adapted, rows), atol=1e-5, rtol=1e-5)
    assert all(".lora_" not in name for name, _ in loaded.named_parameters())


def test_weights_in_bfloat16_carry_an_adapter_in_float32(tiny_path: Path, rows: list[Row]) -> None:
    model = load_model(str(tiny_path), dtype=torch.bfloat16)
    add_adapter(model, 4, 8.0, seed=0)
    types = {p.requires_grad: p.dtype for p in model.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}
    before = values(model, rows)
    take_step(model, rows)
    change = torch.zeros(6).index_add(0, rows[0].owners, values(model, rows).float() - before.float())
    assert float((change * ADVANTAGES).sum()) > 0


def test_layers_that_recompute_give_the_same_gradient(model: PreTrainedModel, rows: list[Row]) -> None:
    twin = copy.deepcopy(model)
    recompute_layers(twin)
    kept: list[int] = []
    for each in (model, twin):
        count = 0

        def note(tensor: Tensor) -> Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            set_update_mode(each)
            logprobs, _ = token_logprobs(each, rows[0], 1.0)
        logprobs.sum().backward()
        kept.append(count)
    assert kept[1] < kept[0] / 2
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


def test_an_adapter_is_trained_under_layers_that_recompute(adapted: PreTrainedModel, rows: list[Row]) -> None:
    twin = copy.deepcopy(adapted)
    recompute_layers(twin)
    assert take_step(twin, rows) == pytest.approx(take_step(adapted, rows), rel=1e-4, abs=1e-6)


def test_a_critic_shares_the_frozen_weights_and_saves_what_is_trained(
    adapted: PreTrainedModel, model: PreTrainedModel
) -> None:
    critic = Critic(adapted)
    base = dict(adapted.base_model.named_parameters())
    for name, weight in critic.body.named_parameters():
        assert (weight is base[name]) == (not weight.requires_grad), name
    state = critic.state_dict()
    assert all(".lora_" in name or name.startswith("head") for name in state)
    with torch.no_grad():
        for weight in critic.parameters():
            if weight.requires_grad:
                weight.zero_()
    critic.load_state_dict(copy.deepcopy(state))
    with pytest.raises(RuntimeError, match="Missing key"):
        critic.load_state_dict({name: value for name, value in state.items() if name != "head.weight"})
