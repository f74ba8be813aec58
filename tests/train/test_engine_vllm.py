"""vLLM in this process: its tokens come from the model's distribution, and its weights are the trainer's."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.engines import EngineConfig, EngineError, Request, make_engine
from agentgym_train.engines.hf import HFEngine, copy_for_sampling
from agentgym_train.engines.vllm import VLLMEngine
from agentgym_train.engines.weight_check import check_held
from agentgym_train.lora import add_adapter, plain_weights
from agentgym_train.models import load_model, load_tokenizer
from agentgym_train.rollout import RolloutRunner
from agentgym_wrappers import ActionParser, HorizonCurriculum, SubprocVectorEnv
from tests.train.letters_env import LettersEnv
from tests.train.test_rollout import assert_sound, episodes_of
from tests.train.vllm_models import CONTEXTS, change, difference, needs_vllm, save_model

pytestmark = needs_vllm

STOP = frozenset([2, 17])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "vllm"
    save_model(folder)
    return folder


@pytest.fixture
def model(path: Path) -> PreTrainedModel:
    return load_model(str(path))


def start(model: PreTrainedModel, precision: str = "float32", **options: Any) -> VLLMEngine:
    return VLLMEngine(model, STOP, precision=precision, **{"max_context": 256, "max_parallel": 16, **options})


def test_the_demo_model_in_bfloat16_and_what_is_left_of_vllm_when_it_is_closed(
    demo_model: PreTrainedModel, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    torch_state, states = torch.random.get_rng_state(), [random.getstate(), str(np.random.get_state())]
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    context = Chat(demo_tokenizer).prompt("Reply with a number.", "How many legs has a horse?")
    config = EngineConfig(kind="vllm")
    engine = make_engine(
        config, demo_model, demo_tokenizer, STOP, precision="bfloat16", max_context=256, max_parallel=4
    )
    assert isinstance(engine, VLLMEngine)
    try:
        with pytest.raises(EngineError, match="one at a time"):
            start(demo_model)
        for _ in range(2):
            replies = engine.generate([Request(f"{i}", context, 12, f"{i}") for i in range(4)], 1.0)
            differences = torch.cat([difference(demo_model, context, reply) for reply in replies])
            assert differences.mean() < 0.05
            assert differences.max() < 0.3
            change(demo_model, scale=0.003)
            engine.update_weights(demo_model)
    finally:
        engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate([Request("a", context, 2, "s")], 1.0)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert states == [random.getstate(), str(np.random.get_state())]
    assert (torch.get_num_threads(), torch.set_num_threads) == (threads, set_num_threads)
    assert not torch.distributed.is_initialized()


@pytest.fixture(scope="module")
def started(path: Path) -> Iterator[VLLMEngine]:
    engine = start(load_model(str(path)))
    yield engine
    engine.close()


@pytest.fixture
def engine(started: VLLMEngine, model: PreTrainedModel) -> VLLMEngine:
    """The engine with the weights of `model`; one for all tests, since vLLM takes long to start."""
    started.update_weights(model)
    return started


def ask(count: int = 12, max_tokens: int = 8) -> list[Request]:
    return [Request(str(i), CONTEXTS[i % 4], max_tokens, f"seed {i}") for i in range(count)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_logprobs_are_those_of_a_plain_forward_at_the_sampling_temperature(
    engine: VLLMEngine, model: PreTrainedModel, temperature: float
) -> None:
    contexts = {str(i): list(CONTEXTS[i % 4]) for i in range(8)}
    for turn in range(3):  # each turn goes on where the last one ended, with something in between
        requests = [Request(key, context, 6, f"{turn}/{key}") for key, context in contexts.items()]
        for (key, context), reply in zip(contexts.items(), engine.generate(requests, temperature), strict=True):
            assert difference(model, context, reply, temperature).max() < 1e-4
            contexts[key] = [*context, *reply.tokens, 7, 7, turn]


def test_a_reply_depends_on_its_seed_and_context_only(engine: VLLMEngine, model: PreTrainedModel) -> None:
    together = engine.generate(ask(), 1.0)
    assert engine.generate(ask(), 1.0) == together
    torch.manual_seed(99)  # the global generator, which vLLM does use, has no part in it
    alone = [engine.generate([request], 1.0)[0] for request in reversed(ask())]
    assert [reply.tokens for reply in reversed(alone)] == [reply.tokens for reply in together]
    assert len({tuple(reply.tokens) for reply in together}) == len(together)
    again = HFEngine(copy_for_sampling(model, "float32"), STOP)
    assert [reply.finish for reply in again.generate(ask(), 1.0)]  # the other engine takes the same requests


def test_tokens_are_drawn_from_the_models_distribution(engine: VLLMEngine, model: PreTrainedModel) -> None:
    count = 2000
    replies = engine.generate([Request(str(i), CONTEXTS[0], 1, f"draw {i}") for i in range(count)], 0.7)
    with torch.no_grad():
        expected = (model(input_ids=torch.tensor([CONTEXTS[0]])).logits[0, -1] / 0.7).softmax(-1)
    drawn = torch.bincount(torch.tensor([reply.tokens[0] for reply in replies]), minlength=len(expected)) / count
    deviations = (drawn - expected).abs() / (expected * (1 - expected) / count).sqrt()
    likely = expected > 0.01
    assert likely.sum() > 8
    assert deviations[likely].max() < 4


def test_temperature_0_takes_the_most_probable_token(engine: VLLMEngine, model: PreTrainedModel) -> None:
    (reply,) = engine.generate(ask(1), 0.0)
    for k in range(len(reply.tokens)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*CONTEXTS[0], *reply.tokens[:k]]])).logits[0, -1]
        assert reply.tokens[k] == int(logits.argmax())
    assert difference(model, CONTEXTS[0], reply).max() < 1e-4


def test_replies_end_at_any_stop_token_or_at_max_tokens(engine: VLLMEngine) -> None:
    requests = [Request(str(i), CONTEXTS[i % 4], 60 + i % 3, f"{i}") for i in range(200)]
    ends = set()
    for request, reply in zip(requests, engine.generate(requests, 2.0), strict=True):
        stops = [token for token in reply.tokens if token in STOP]
        assert stops == ([reply.tokens[-1]] if reply.finish == "stop" else [])
        assert reply.finish == "stop" or len(reply.tokens) == request.max_tokens
        assert len(reply.logprobs) == len(reply.tokens)
        ends |= {reply.finish, *stops}
    assert ends == {"stop", "length", *STOP}


def test_a_late_request_joins_the_others_and_one_may_be_dropped(engine: VLLMEngine, model: PreTrainedModel) -> None:
    engine.submit(ask(4, max_tokens=40), 1.0)
    done = engine.collect(0.0)
    engine.submit([Request("late", CONTEXTS[1], 2, "s"), Request("dropped", CONTEXTS[1], 50, "s")], 1.0)
    engine.release(["dropped"])
    order = list(done)
    while len(order) < 5:
        new = engine.collect(60.0)
        order += list(new)
        done |= new
    assert "late" in order[:-1]  # it waited for no one
    assert difference(model, CONTEXTS[1], done["late"]).max() < 1e-4
    assert engine.collect(1.0) == {}
    engine.submit(ask(4, max_tokens=40), 1.0)
    engine.release()
    assert engine.collect(1.0) == {}


def test_new_weights_also_replace_what_was_computed_with_the_old_ones(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    context = CONTEXTS[1] * 3
    (before,) = engine.generate([Request("row", context, 6, "0")], 1.0)
    change(model, seed=1)
    # Without the reset vLLM goes on from keys and values of the old weights, which is what the reset is for.
    engine._llm.collective_rpc("take_weights", kwargs={"weights_iterator": plain_weights(model)})
    (stale,) = engine.generate([Request("row", context, 6, "0")], 1.0)
    assert difference(model, context, stale).max() > 1e-2
    engine.update_weights(model)
    (after,) = engine.generate([Request("row", context, 6, "0")], 1.0)
    assert difference(model, context, after).max() < 1e-4
    assert after.logprobs != before.logprobs
    expected = list(after.logprobs)
    change(model)  # the engine has a copy
    assert engine.generate([Request("row", context, 6, "0")], 1.0)[0].logprobs == expected


def test_an_adapter_reaches_the_engine_with_the_weights_under_it(engine: VLLMEngine, model: PreTrainedModel) -> None:
    pytest.importorskip("peft", reason="adapters need peft: make install")
    plain = engine.generate(ask(4), 1.0)
    add_adapter(model, rank=4, alpha=8.0, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.add_(0.1)
    engine.update_weights(model)
    replies = engine.generate(ask(4), 1.0)
    for request, reply in zip(ask(4), replies, strict=True):
        assert difference(model, request.tokens, reply).max() < 1e-4
    assert [reply.logprobs for reply in replies] != [reply.logprobs for reply in plain]


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.norm.weight",
    ],
)
def test_a_weight_that_did_not_arrive_is_noticed(engine: VLLMEngine, model: PreTrainedModel, name: str) -> None:
    (held,) = engine._llm.collective_rpc("held_weights", args=("1",))
    check_held(plain_weights(model), held, "vllm")
    with torch.no_grad():  # the least change there is, in a third of the columns
        weight = model.get_parameter(name)
        weight[..., ::3] = torch.nextafter(weight[..., ::3], torch.tensor(9.0))
    with pytest.raises(EngineError, match=f"holds another {name}"):
        check_held(plain_weights(model), held, "vllm")


def test_damaged_weights_are_an_error(engine: VLLMEngine, model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.get_parameter("model.norm.weight").fill_(float("nan"))
    engine.update_weights(model)
    with pytest.raises(EngineError, match="not finite"):
        engine.generate(ask(3), 1.0)
    assert engine.collect() == {}


def test_what_vllm_would_change_unasked_is_refused(engine: VLLMEngine) -> None:
    with pytest.raises(EngineError, match=r"context of a has 250 tokens.* reply of 7 within the 256"):
        engine.generate([Request("a", [5] * 250, 7, "s")], 1.0)
    with pytest.raises(EngineError, match=r"from 0\.01 to 2\.0, not at 0\.001"):
        engine.generate(ask(1), 0.001)
    with pytest.raises(EngineError, match=r"not at 2\.5"):
        engine.generate(ask(1), 2.5)
    with pytest.raises(EngineError, match=r"agent\.constrained"):
        engine.generate([Request("a", [5], 7, "s", choices=[[5, 2]])], 1.0)
    assert len(engine.generate([Request("a", [5] * 249, 7, "s")], 1.0)) == 1  # it fits exactly


def test_a_reply_that_takes_too_long_is_an_error(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_timeout_s", 0.0)
    with pytest.raises(EngineError, match=r"engine\.timeout_s=0"):
        engine.generate(ask(4, max_tokens=100), 1.0)
    assert engine.collect(1.0) == {}


def test_episodes_are_played_with_it(engine: VLLMEngine, path: Path) -> None:
    chat = Chat(load_tokenizer(str(path)))

    def one() -> gymnasium.Env[str, str]:
        return HorizonCurriculum(ActionParser(LettersEnv()), 99)

    vec = SubprocVectorEnv([one] * 4, autoreset_mode="Disabled")
    try:
        runner = RolloutRunner(vec, engine, chat, max_reply_tokens=8, max_context=256)
        trajectories = runner.run(episodes_of(0, 1, samples=3), 1.0)
    finally:
        vec.close()
    for trajectory in trajectories:
        assert trajectory.end != "error", trajectory.error
        assert_sound(trajectory)
