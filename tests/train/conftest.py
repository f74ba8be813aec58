"""A real, very small language model, and what the trainer's tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import gymnasium
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers import PreTrainedTokenizerFast as FastTokenizer

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_train.chat import Chat
from agentgym_train.engines.hf import HFEngine
from agentgym_train.models import demo_model_path, load_model, load_tokenizer
from tests.train.letters_env import LETTERS
from tests.train.rollouts import RecordingEngine, Run, Runners

# One thread everywhere: sums in one order, so runs can be compared exactly; processes that are started inherit it.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
torch.set_num_threads(1)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train_tokenizer(text: list[str], chat_template: str | None = CHATML) -> PreTrainedTokenizerBase:
    """Byte-level BPE of 512 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = FastTokenizer(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = chat_template
    return cast(PreTrainedTokenizerBase, fast)


def pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Teach the model to end replies: a few letters, then the end-of-turn token."""
    generator = torch.Generator().manual_seed(0)
    start, (end,) = tokenizer.encode("<|im_start|>assistant\n"), tokenizer.encode("<|im_end|>")
    letters = torch.tensor([tokenizer.encode(letter)[0] for letter in LETTERS])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        picks = letters[torch.randint(len(letters), (32, 10), generator=generator)]
        lengths = torch.randint(1, 6, (32, 1), generator=generator)
        column = torch.arange(10)[None]
        replies = torch.where(column == lengths, end, picks)
        tokens = torch.cat([torch.tensor(start).expand(32, -1), replies], dim=1)
        labels = torch.cat([torch.full((32, len(start)), -100), torch.where(column <= lengths, replies, -100)], dim=1)
        optimiser.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimiser.step()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a Llama of two layers that ends its replies; in float32 it samples in milliseconds."""
    env = gymnasium.make("AgentGym/TextCraft-v0")
    tokenizer = train_tokenizer([env.reset(seed=seed)[0] for seed in range(20)])
    env.close()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    pretrain(model, tokenizer)
    path = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tokenizer(tiny_path: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(tiny_path))


@pytest.fixture(scope="session")
def chat(tokenizer: PreTrainedTokenizerBase) -> Chat:
    return Chat(tokenizer)


@pytest.fixture
def model(tiny_path: Path) -> PreTrainedModel:
    """The tiny model; a new one for each test, so it may be trained."""
    return load_model(str(tiny_path))


@pytest.fixture
def engine(tiny_path: Path, chat: Chat) -> HFEngine:
    return HFEngine(load_model(str(tiny_path)), chat.stop_tokens)


@pytest.fixture
def run_with(chat: Chat) -> Iterator[Run]:
    """Makes runners; their environments are closed with the test."""
    runners = Runners(chat)
    yield runners
    runners.close()


@pytest.fixture
def recorder(engine: HFEngine) -> RecordingEngine:
    return RecordingEngine(engine.model, engine._stop)


@pytest.fixture(scope="session")
def demo_tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(str(demo_model_path()))


@pytest.fixture(scope="module")
def demo_model() -> PreTrainedModel:
    return load_model(str(demo_model_path()))
