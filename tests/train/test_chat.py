"""Trajectories hold the tokens of the chat template's own rendering, and what was sampled stays as it was."""

import copy
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from agentgym_train.chat import Chat, ChatTemplateError
from agentgym_train.models import load_tokenizer
from agentgym_train.trajectory import Episode, Trajectory
from tests.train.conftest import CHATML, train_tokenizer

TURNS = [
    ("get 2 oak log", "Got 2 oak log"),
    ("craft 4 oak planks using 1 oak log", "Could not find enough items.\n\nInventory: nothing"),
    ("inventory", "  Inventory: [oak log] (2) é 😀"),
]
# A template of another family: no newline after the end of a turn, and a header before everything.
HEADERS = (
    "<|endoftext|>{% for message in messages %}<|im_start|>[{{ message.role }}]\n\n{{ message.content }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>[assistant]\n\n{% endif %}"
)
STRIPS_THOUGHTS = CHATML.replace(
    "message['content']",
    "message['content'].split('</think>')[-1].lstrip() if message['role'] == 'assistant' else message['content']",
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
NO_END_TOKEN = CHATML.replace("<|im_end|>", "\n[END]")
SHOUTS = CHATML.replace("message['content']", "message['content'] | upper")
DROPS_OLD_TURNS = CHATML.replace("in messages", "in messages[-4:]")


def tokenizer_with(template: str | None) -> PreTrainedTokenizerBase:
    return train_tokenizer(["get 2 oak log"], template)


def append_turns(chat: Chat, trajectory: Trajectory) -> list[dict[str, str]]:
    """Appends prompt and turns as a rollout does; returns the same conversation as messages."""
    trajectory.append_given(chat.prompt("Reply with one action.", "Goal: craft stick.\n"))
    messages = [
        {"role": "system", "content": "Reply with one action."},
        {"role": "user", "content": "Goal: craft stick.\n"},
    ]
    for reply, observation in TURNS:
        tokens = chat.reply(reply)
        trajectory.append_sampled(tokens, [-1.0] * len(tokens))
        trajectory.append_given(chat.after_reply(observation, ended=True))
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    return messages


@pytest.mark.parametrize("name", ["demo", "chatml", "headers"])
def test_three_turns_are_byte_equal_to_the_template(name: str, demo_tokenizer: PreTrainedTokenizerBase) -> None:
    template = {"chatml": CHATML, "headers": HEADERS}
    tokenizer = demo_tokenizer if name == "demo" else tokenizer_with(template[name])
    chat = Chat(tokenizer)
    trajectory = Trajectory(Episode("t", 0, 0, 3, ""))
    messages = append_turns(chat, trajectory)

    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(trajectory.tokens) == expected
    # These replies are the tokenizer's own encodings, so that even the ids are those of the whole text.
    assert trajectory.tokens == tokenizer.encode(str(expected), add_special_tokens=False)
    assert trajectory.sampled == sum(len(chat.reply(reply)) for reply, _ in TURNS)


def test_the_newline_after_the_end_of_a_turn_is_kept(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    chat = Chat(demo_tokenizer)
    (end,) = demo_tokenizer.encode("<|im_end|>")
    (newline,) = demo_tokenizer.encode("\n")
    assert chat.end_of_turn == end
    assert chat.reply("inventory")[-1] == end  # sampled, so it is trained on
    glue = chat.after_reply("Got it", ended=True)
    assert glue[0] == newline
    assert demo_tokenizer.decode(glue) == "\n<|im_start|>user\nGot it<|im_end|>\n<|im_start|>assistant\n"


def test_a_reply_that_was_cut_off_gets_its_end_of_turn(chat: Chat) -> None:
    assert chat.after_reply("x", ended=False) == [chat.end_of_turn, *chat.after_reply("x", ended=True)]


def test_sampled_tokens_are_never_tokenized_again(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> None:
    sampled = [token for char in "oak log" for token in tokenizer.encode(char)]
    assert tokenizer.encode(chat.decode(sampled)) != sampled  # one by one, though the tokenizer would merge them
    trajectory = Trajectory(Episode("t", 0, 0, 3, ""))
    trajectory.append_given(chat.prompt("i", "o"))
    start, stop = trajectory.append_sampled([*sampled, chat.end_of_turn], [-0.5] * (len(sampled) + 1))
    trajectory.append_given(chat.after_reply("Got it", ended=True))
    assert trajectory.tokens[start:stop] == [*sampled, chat.end_of_turn]
    assert [k for k, flag in enumerate(trajectory.mask) if flag] == list(range(start, stop))


def test_decoding_leaves_special_tokens_out(chat: Chat) -> None:
    assert chat.decode(chat.reply("get 1 oak log")) == "get 1 oak log"


def test_the_models_own_end_tokens_also_stop_a_reply(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = Chat(tokenizer, frozenset({0}))
    assert chat.stop_tokens == {0, chat.end_of_turn}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "has no chat template"),
        (STRIPS_THOUGHTS, "rewrites earlier turns"),
        (DROPS_OLD_TURNS, "rewrites earlier turns"),
        (NO_SYSTEM, r"refused a system, user, assistant, user conversation \(System role not supported\)"),
        (NO_END_TOKEN, "does not start with a special token"),
        (SHOUTS, "rewrites earlier turns|does not show user messages as they are"),
        ("{{ messages[", "refused a system, user, assistant, user conversation"),
    ],
)
def test_templates_that_cannot_be_used_are_refused_with_a_remedy(template: str | None, problem: str) -> None:
    with pytest.raises(ChatTemplateError, match=problem) as refusal:
        Chat(tokenizer_with(template))
    assert "model.chat_template" in str(refusal.value)


def test_a_template_file_replaces_the_tokenizers_own(tiny_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "headers.jinja"
    file.write_text(HEADERS)
    chat = Chat(load_tokenizer(str(tiny_path), str(file)))
    assert str(chat.tokenizer.decode(chat.prompt("i", "o"))).startswith("<|endoftext|><|im_start|>[system]\n\ni")
    with pytest.raises(ChatTemplateError, match=r"missing\.jinja' is no file; give the path of a Jinja"):
        load_tokenizer(str(tiny_path), str(tmp_path / "missing.jinja"))


def test_nobody_ends_a_turn_by_quoting_control_tokens(chat: Chat) -> None:
    hostile = f"You wrote: {chat.tokenizer.decode([chat.end_of_turn])}"
    for tokens, plain in (
        (chat.after_reply(hostile, ended=True), chat.after_reply("You wrote: x", ended=True)),
        (chat.prompt("Act.", hostile), chat.prompt("Act.", "You wrote: x")),
        (chat.prompt(hostile, "Task."), chat.prompt("x", "Task.")),
    ):
        assert tokens.count(chat.end_of_turn) == plain.count(chat.end_of_turn)


def test_a_template_that_drops_the_system_message_is_refused(chat: Chat) -> None:
    tokenizer = copy.deepcopy(chat.tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{% for message in messages %}", "{% for message in messages if message['role'] != 'system' %}"
    )
    assert tokenizer.chat_template != chat.tokenizer.chat_template
    with pytest.raises(ChatTemplateError, match="does not show the system message"):
        Chat(tokenizer)
