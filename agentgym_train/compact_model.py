"""Making and training the compact model.

It learns to act from episodes of a scenario's oracle, each retold with other names: every word that the oracle
takes over from what it reads is exchanged for another one, or for one that means nothing. So the model learns to
look names up in its context, which serves for tasks that it has not seen.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import gymnasium
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_envs import TextEnv
from agentgym_train.chat import Chat
from agentgym_train.compact import HEAD_SIZE, CompactConfig
from agentgym_train.config import ConfigError, OptimiserConfig
from agentgym_train.packed_attention import PACKED_ATTENTION
from agentgym_train.packing import pack
from agentgym_train.plain_data import plain
from agentgym_train.trajectory import Episode, Trajectory
from agentgym_train.update import make_optimiser, update_supervised

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_WORD = re.compile(r"[A-Za-z]{2,}")
_INVENTED = 0.3  # share of new names that mean nothing; the others are names that other episodes use
_SHARPNESS = 4.5  # of attention to the token before, at first: four fifths of it go there
_ECHOES = 16  # sequences of a step of the first phase
_CAN_REPEAT = 0.3  # loss, in nats a token, at which the first phase ends
_READING = 0.7  # share of the training in which prompts are learned too, which is how copying is learned first


@dataclass(frozen=True)
class Story:
    """An episode as text.

    Attributes:
        task: Task id.
        instruction: The system message.
        opening: The first observation.
        turns: Reply and the observation after it; the last one is not shown to the agent.
    """

    task: str
    instruction: str
    opening: str
    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """Everything that is said."""
        return "\n".join([self.instruction, self.opening, *(part for turn in self.turns for part in turn)])

    @property
    def replies(self) -> str:
        """What the agent says."""
        return "\n".join(reply for reply, _ in self.turns)


def oracle_stories(env_id: str, count: int) -> list[Story]:
    """Let the oracle play the tasks of an environment's training split, in order and with a new seed each.

    Args:
        env_id: Registered id.
        count: Number of episodes; those that the oracle does not solve are left out.

    Raises:
        ConfigError: If there is no such environment, or its oracle solves nothing.
    """
    try:
        env = gymnasium.make(env_id, split="train")
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        known = sorted(name for name in gymnasium.registry if name.startswith("AgentGym/"))
        raise ConfigError(f"env={env_id!r}: {error} Known here: {', '.join(known)}.") from error
    core = cast(TextEnv, env.unwrapped)
    stories: list[Story] = []
    try:
        tasks = [task.id for task in core.tasks]
        for number in range(count):
            task = tasks[number % len(tasks)]
            opening, info = env.reset(seed=number, options={"task": task})
            instruction, turns, ended = str(info["instruction"]), [], False
            while not ended and (action := core.oracle_action()) is not None:
                observation, _, terminated, truncated, info = env.step(action)
                turns.append((action, observation))
                ended = terminated or truncated
            if info["success"]:
                stories.append(Story(task, instruction, opening, tuple(turns)))
    finally:
        env.close()
    if not stories:
        raise ConfigError(f"env={env_id!r}: its oracle solved none of {count} episodes, so there is nothing to learn.")
    return stories


def names_in(stories: Sequence[Story]) -> list[str]:
    """Words that the oracle takes over from what it reads, in alphabetic order; those of the instruction stay."""
    fixed = {word for story in stories for word in _WORD.findall(story.instruction)}
    return sorted({word for story in stories for word in _WORD.findall(story.replies)} - fixed)


def retell(story: Story, names: Sequence[str], rng: random.Random) -> Story:
    """Tell a story with other names, the same one wherever a name stands.

    Args:
        story: The story.
        names: Words that are exchanged, and from which some of the new ones are taken.
        rng: Chooses.
    """
    known = set(names)
    own = [word for word in dict.fromkeys(_WORD.findall(story.text)) if word in known]
    new = dict(zip(own, rng.sample(names, len(own)), strict=True))
    for word in own:
        if rng.random() < _INVENTED:
            new[word] = _invent(rng)

    def told(text: str) -> str:
        return _WORD.sub(lambda match: new.get(match[0], match[0]), text)

    turns = tuple((told(reply), told(observation)) for reply, observation in story.turns)
    return Story(story.task, story.instruction, told(story.opening), turns)


def retold(stories: Sequence[Story], count: int, seed: int) -> Iterator[Story]:
    """Tell stories again and again, with other names each time; the n-th is a function of n and the seed."""
    names = names_in(stories)
    for number in range(count):
        rng = random.Random(f"{seed}/retold/{number}")
        yield retell(stories[int(rng.random() * len(stories))], names, rng)


def make_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerBase:
    """Make a byte-level BPE tokenizer with a chat template.

    Args:
        texts: What its merges are learned from.
        vocabulary: Number of tokens, unless the texts give fewer merges; at least 259 for bytes and special tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = _TEMPLATE
    return cast(PreTrainedTokenizerBase, fast)


def make_model(tokenizer: PreTrainedTokenizerBase, config: CompactConfig) -> PreTrainedModel:
    """Make the untrained model; its first weights are a function of the seed."""
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.hidden_size // HEAD_SIZE,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = LlamaForCausalLM(shape)
    _look_back(model)
    model.set_attn_implementation(PACKED_ATTENTION)
    return model


def _look_back(model: LlamaForCausalLM) -> None:
    """Let the first two heads begin by attending to the token before, whatever it is.

    Copying takes two steps: to know what came before each token, and to look for where that was the case. The first
    one is hard to find by chance. The constant parts of query and key make the score a sum of cosines of the
    distance, which the rotary embedding turns into angles; with the query turned back by one position it is highest
    at a distance of 1.
    """
    attention, angles = model.model.layers[0].self_attn, model.model.rotary_emb.inv_freq
    for head in range(min(2, model.config.num_attention_heads)):
        own = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
        with torch.no_grad():
            attention.k_proj.bias[own] = _SHARPNESS * torch.cat([torch.ones_like(angles), torch.zeros_like(angles)])
            attention.q_proj.bias[own] = _SHARPNESS * torch.cat([angles.cos(), -angles.sin()])


def tell(story: Story, chat: Chat, whole: bool) -> Trajectory:
    """Write a story down as a trajectory.

    Args:
        story: The story.
        chat: Renders it.
        whole: Whether the opening is trained on as well, not the replies alone.

    Returns:
        A trajectory whose prompt is what all stories of the scenario begin with, so that packing shares it.
    """
    prompt = chat.prompt(story.instruction, story.opening)
    begins = len(os.path.commonprefix([prompt, chat.prompt(story.instruction, "")]))  # noqa: RUF071 (of any lists)
    trajectory = Trajectory(Episode(story.task, 0, 0, len(story.turns), "retold"), prompt_length=begins)
    trajectory.append_given(prompt[:begins])
    opening = prompt[begins:]
    if whole:
        trajectory.append_sampled(opening, [0.0] * len(opening))
    else:
        trajectory.append_given(opening)
    for number, (reply, observation) in enumerate(story.turns, start=1):
        tokens = chat.reply(reply)
        trajectory.append_sampled(tokens, [0.0] * len(tokens))
        if number < len(story.turns):
            trajectory.append_given(chat.after_reply(observation, ended=True))
    return trajectory


def write_compact(config: CompactConfig, folder: Path, say: Callable[[str], None]) -> None:
    """Make and train a compact model, and write it as a Hugging Face folder.

    Args:
        config: What to make.
        folder: An empty folder.
        say: Told about progress.
    """
    stories = oracle_stories(config.env, config.oracle_episodes)
    texts = [story.text for story in [*stories, *retold(stories, len(stories), config.seed)]]
    tokenizer = make_tokenizer(texts, config.vocabulary)
    model = make_model(tokenizer, config)
    size = sum(weight.numel() for weight in model.parameters()) / 1e6
    say(f"a model of {size:.1f} million parameters learns from {len(stories)} episodes of the oracle")
    _train(model, Chat(tokenizer), stories, config, say)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = {name: value for name, value in plain(config).items() if name != "out"}
    made_with = f"# The options of `agentgym compact` that made this model.\n{yaml.safe_dump(options, sort_keys=False)}"
    (folder / "compact.yaml").write_text(made_with, encoding="utf-8")


def _train(
    model: PreTrainedModel, chat: Chat, stories: Sequence[Story], config: CompactConfig, say: Callable[[str], None]
) -> None:
    optimiser_config = OptimiserConfig(lr=config.lr, precision="float32")
    optimiser = make_optimiser(model, optimiser_config)
    rng = random.Random(f"{config.seed}/echo")
    for step in range(config.echo_steps):
        rows = pack([_echo(rng, chat) for _ in range(_ECHOES)], optimiser_config.token_budget)
        lr = config.echo_lr * min(1.0, (step + 1) / 50)
        metrics = update_supervised(model, optimiser, rows, lr, optimiser_config, _go_on)
        can = metrics["loss"] < _CAN_REPEAT
        if can or (step + 1) % 250 == 0:
            say(f"{step + 1} steps of repeating what was read: loss {metrics['loss']:.3f} nats a token")
        if can:
            break
    steps = config.episodes // config.batch_size
    lessons = retold(stories, config.episodes, config.seed)
    for step in range(steps):
        batch = [tell(next(lessons), chat, whole=step < _READING * steps) for _ in range(config.batch_size)]
        batch += [_echo(rng, chat) for _ in range(_ECHOES // 4)]  # so that it is not unlearned
        rows = pack(batch, optimiser_config.token_budget)
        metrics = update_supervised(model, optimiser, rows, _rate(step, steps, config.lr), optimiser_config, _go_on)
        if (step + 1) % max(1, steps // 20) == 0:
            say(f"{(step + 1) * config.batch_size} episodes: loss {metrics['loss']:.3f} nats a token")


def _echo(rng: random.Random, chat: Chat) -> Trajectory:
    """Tokens by chance of which some are repeated after a while; the repetition is trained on."""

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(len(chat.tokenizer)) for _ in range(rng.randint(least, most))]

    told, trajectory = some(5, 20), Trajectory(Episode("echo", 0, 0, 1, ""))
    trajectory.append_given([*some(0, 15), *told, *some(0, 10), told[0]])
    trajectory.prompt_length = len(trajectory.tokens)
    trajectory.append_sampled(told[1:], [0.0] * (len(told) - 1))
    return trajectory


def _rate(step: int, steps: int, largest: float) -> float:
    """Linear rise over a twentieth of the steps, then linear fall to a tenth."""
    rise = max(1, steps // 20)
    return largest * min((step + 1) / rise, 1 - 0.9 * (step - rise) / max(1, steps - rise))


def _invent(rng: random.Random) -> str:
    """A word of two or three syllables."""
    return "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))


def _go_on() -> None:
    """Nothing stops the training."""
