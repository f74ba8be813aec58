"""The engine's tokens come from the model's distribution, and its log-probabilities are a plain forward's."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.engines import Completion, EngineError, Request
from agentgym_train.engines.hf import HFEngine, _sample

# Of unequal length, so that rows are padded; the last one is far longer than the others.
PROMPTS = ["write e", "a b c d: write t", "o", "uvw: write o " * 12]
OBSERVATIONS = ["1 of 10", "nothing", "x " * 9, ""]


def plain_logprobs(model: PreTrainedModel, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of every token but the first, from one forward over the whole sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, :-1]
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return torch.gather(logprobs, -1, torch.tensor(tokens[1:])[:, None])[:, 0]


def assert_plain(
    model: PreTrainedModel, context: Sequence[int], reply: Completion, temperature: float = 1.0, atol: float = 1e-4
) -> None:
    expected = plain_logprobs(model, [*context, *reply.tokens], temperature)[-len(reply.tokens) :]
    torch.testing.assert_close(torch.tensor(reply.logprobs), expected, atol=atol, rtol=0)


def play(
    engine: HFEngine, chat: Chat, turns: Sequence[Sequence[int]], max_tokens: int, atol: float = 1e-4
) -> list[Completion]:
    """Plays turns with the given rows, checking every reply; returns all replies."""
    contexts = [chat.prompt("Reply.", prompt) for prompt in PROMPTS]
    replies = []
    for turn, rows in enumerate(turns):
        requests = [Request(f"row {row}", contexts[row], max_tokens, f"{turn}/{row}") for row in rows]
        for row, reply in zip(rows, engine.generate(requests, 1.0), strict=True):
            assert_plain(engine.model, contexts[row], reply, atol=atol)
            contexts[row] = [*contexts[row], *reply.tokens]
            contexts[row] += chat.after_reply(OBSERVATIONS[(row + turn) % 4], ended=reply.finish == "stop")
            replies.append(reply)
    return replies


def test_logprobs_are_those_of_a_plain_forward_over_turns_with_rows_dropping_out(engine: HFEngine, chat: Chat) -> None:
    replies = play(engine, chat, [[0, 1, 2, 3], [0, 1, 2, 3], [3, 1], [3, 1], [1]], max_tokens=7)
    assert len({len(reply.tokens) for reply in replies}) > 3  # rows finished at different lengths
    assert {reply.finish for reply in replies} == {"stop", "length"}


def test_logprobs_of_the_demo_model_are_those_of_a_plain_forward(
    demo_model: PreTrainedModel, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    chat = Chat(demo_tokenizer)
    play(HFEngine(demo_model, chat.stop_tokens), chat, [[0, 1, 2], [0, 2]], max_tokens=4)


def test_a_row_may_come_back_after_a_pause(engine: HFEngine, chat: Chat) -> None:
    play(engine, chat, [[0, 1], [1], [0, 1]], max_tokens=5)


class CountingEngine(HFEngine):
    """Counts the tokens that are computed."""

    computed = 0

    def _forward(self, rows: list[int], new: list[list[int]], record: Sequence[int] | None = None) -> torch.Tensor:
        self.computed += sum(map(len, new))
        return super()._forward(rows, new, record)


def test_what_contexts_have_in_common_is_computed_once(engine: HFEngine, chat: Chat) -> None:
    counting = CountingEngine(engine.model, engine._stop)
    prompt = chat.prompt("Reply.", "uvw: write o " * 12)

    def ask(*names: str, context: Sequence[int] = prompt) -> list[Completion]:
        before = counting.computed
        replies = counting.generate([Request(name, context, 1, name) for name in names], 1.0)
        for reply in replies:
            assert_plain(engine.model, context, reply)
        costs.append(counting.computed - before)
        return replies

    costs: list[int] = []
    (reply, _) = ask("a", "b")  # a group begins together
    ask("c")  # a member begins later
    longer = [*prompt, *reply.tokens, *chat.after_reply("x", ended=False)]
    ask("a", context=longer)  # one takes its turn while the others wait
    ask("b", context=longer)
    counting.release(["a", "c"])
    ask("d", context=longer)  # what was released still serves once
    assert costs[0] == len(prompt)
    assert costs[1] == 1
    assert costs[2] == costs[3] == len(longer) - len(prompt)
    assert costs[4] == 1
    assert counting._contexts is not None
    assert counting._contexts.keys == ["b", "d"]


def test_a_key_with_another_context_is_computed_anew(engine: HFEngine, chat: Chat) -> None:
    for prompt in ("o", "write t " * 9, "uvw: o " * 30, "o"):  # none goes on where the one before ended
        context = chat.prompt("Reply.", prompt)
        (reply,) = engine.generate([Request("same key", context, 5, prompt)], 1.0)
        assert_plain(engine.model, context, reply)


def test_a_reply_depends_on_its_seed_and_context_only(engine: HFEngine, chat: Chat) -> None:
    contexts = [chat.prompt("Reply.", prompt) for prompt in PROMPTS]
    requests = [Request(str(i), contexts[i % 4], 8, f"seed {i}") for i in range(12)]
    together = engine.generate(requests, 1.0)
    engine.release()
    assert engine.generate(requests, 1.0) == together
    engine.release()
    for request, expected in zip(reversed(requests), reversed(together), strict=True):
        (alone,) = engine.generate([request], 1.0)
        assert alone.tokens == expected.tokens
    assert len({tuple(reply.tokens) for reply in together}) > 8


def test_tokens_are_drawn_from_the_models_distribution(engine: HFEngine, chat: Chat) -> None:
    count = 4000
    context = chat.prompt("Reply.", "write e")
    replies = engine.generate([Request(str(i), context, 1, f"draw {i}") for i in range(count)], 1.0)
    with torch.no_grad():
        expected = engine.model(input_ids=torch.tensor([context])).logits[0, -1].softmax(-1)
    drawn = torch.bincount(torch.tensor([reply.tokens[0] for reply in replies]), minlength=len(expected)) / count
    deviations = (drawn - expected).abs() / (expected * (1 - expected) / count).sqrt()
    likely = expected > 0.01
    assert likely.sum() > 8
    assert deviations[likely].max() < 4


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_logprobs_are_those_at_the_sampling_temperature(engine: HFEngine, chat: Chat, temperature: float) -> None:
    context = chat.prompt("Reply.", "write e")
    for reply in engine.generate([Request(str(i), context, 6, str(i)) for i in range(4)], temperature):
        assert_plain(engine.model, context, reply, temperature)


def test_temperature_0_takes_the_most_probable_token(engine: HFEngine, chat: Chat) -> None:
    context = chat.prompt("Reply.", "write e")
    one, two = engine.generate([Request(str(i), context, 6, str(i)) for i in range(2)], 0.0)
    assert one == two
    for k in range(len(one.tokens)):
        with torch.no_grad():
            logits = engine.model(input_ids=torch.tensor([[*context, *one.tokens[:k]]])).logits[0, -1]
        assert one.tokens[k] == int(logits.argmax())
    assert_plain(engine.model, context, one)


def test_replies_end_at_any_stop_token_or_at_max_tokens(
    model: PreTrainedModel, chat: Chat, tokenizer: PreTrainedTokenizerBase
) -> None:
    (other,) = tokenizer.encode("e")
    engine = HFEngine(model, chat.stop_tokens | {other})
    context = chat.prompt("Reply.", "write e")
    replies = engine.generate([Request(str(i), context, 2 + i % 3, str(i)) for i in range(60)], 1.0)
    ends = set()
    for i, reply in enumerate(replies):
        stops = [token for token in reply.tokens if token in engine._stop]
        ends |= {*stops, reply.finish}
        if reply.finish == "stop":
            assert stops == [reply.tokens[-1]]
        else:
            assert stops == []
            assert len(reply.tokens) == 2 + i % 3
        assert len(reply.logprobs) == len(reply.tokens) <= 2 + i % 3
    assert ends == {other, chat.end_of_turn, "stop", "length"}


def test_new_weights_also_replace_what_was_computed_with_the_old_ones(
    engine: HFEngine, chat: Chat, model: PreTrainedModel
) -> None:
    context = chat.prompt("Reply.", "write e")
    (before,) = engine.generate([Request("row", context, 6, "0")], 1.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    engine.update_weights(model)
    context += [*before.tokens, *chat.after_reply("1 of 10", ended=before.finish == "stop")]
    (after,) = engine.generate([Request("row", context, 6, "1")], 1.0)
    assert_plain(model, context, after)
    assert after.tokens != before.tokens


def test_a_smaller_dtype_takes_over_rounded_weights(model: PreTrainedModel, chat: Chat, engine: HFEngine) -> None:
    rounded = HFEngine(engine.model.to(torch.bfloat16), chat.stop_tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    rounded.update_weights(model)
    for mine, trained in zip(rounded.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, trained.to(torch.bfloat16))
    (reply,) = rounded.generate([Request("row", chat.prompt("Reply.", "write e"), 6, "0")], 1.0)
    assert_plain(model, chat.prompt("Reply.", "write e"), reply, atol=0.1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_an_error(engine: HFEngine, chat: Chat, value: float) -> None:
    with torch.no_grad():
        next(iter(engine.model.parameters())).fill_(value)
    with pytest.raises(EngineError, match="not finite"):
        engine.generate([Request("row", chat.prompt("Reply.", "write e"), 6, "0")], 1.0)


def test_release_frees_the_cache_at_once(engine: HFEngine) -> None:
    engine.generate([Request("a", [5, 6, 7], 2, "s")], 1.0)
    contexts = engine._contexts
    assert contexts is not None
    layer: Any = contexts.cache.layers[0]
    keys = weakref.ref(layer.keys)
    del contexts, layer
    gc.disable()  # nothing may wait for the collector: caches are the largest thing in memory
    try:
        engine.release()
        assert keys() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("allowed", [(), (2, 3)])
def test_the_largest_draw_takes_a_token_that_can_be_drawn(allowed: tuple[int, ...]) -> None:
    logits = torch.zeros(1, 16)
    logits[0, 8:] = -torch.inf
    draw = torch.tensor([1 - 1e-10])  # 1.0 in single precision
    (token,), (logprob,) = _sample(logits, draw, torch.tensor([1.0]), [allowed])
    assert token == (allowed[-1] if allowed else 7)
    assert torch.isfinite(logprob)
