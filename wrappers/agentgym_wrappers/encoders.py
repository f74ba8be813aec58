"""From text to arrays of a fixed shape, for policies that are no language models.

Each encoder sees the goal along with every observation: a feed-forward policy would have forgotten it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

_WORD = re.compile(r"\w+")
_CLAUSE_END = re.compile(r"[.;:?!\n]+")
_PADDING, _UNKNOWN, _SEPARATOR = 0, 1, 2
_FIRST_WORD = 3


class Encoder(Protocol):
    """What `EncodeObservation` takes: any object with these two members."""

    @property
    def space(self) -> Box:
        """The space of the arrays."""

    def __call__(self, goal: str, observation: str) -> NDArray[Any]:
        """Return the array for an observation in an episode with this goal."""


def stable_hash(text: str, salt: int = 0) -> int:
    """Return 64 bits that depend on the text and the salt alone, unlike Python's `hash`."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class NgramHash:
    """Which words and groups of words occur, hashed into a vector of zeros and ones.

    The text is cut into clauses at `.`, `;`, `:`, `?`, `!` and line breaks. The groups are all runs of up to `order`
    words within a clause, and each whole clause. The goal's have a part of the vector to themselves.

    Attributes:
        size: Entries for the observation.
        goal_size: Entries for the goal.
        order: Words in the longest group, at least 1.
    """

    kind: ClassVar[str] = "ngrams"
    size: int = 2048
    goal_size: int = 256
    order: int = 3

    def __post_init__(self) -> None:
        """Check the arguments."""
        _check_counts(self, size=1, goal_size=0, order=1)

    @cached_property
    def space(self) -> Box:
        """Vectors of zeros and ones, [goal_size + size], float32."""
        return Box(0.0, 1.0, (self.goal_size + self.size,), np.float32)

    def __call__(self, goal: str, observation: str) -> NDArray[np.float32]:
        """Return the vector of an observation: the goal's entries, then those of the observation."""
        vector = np.zeros(self.goal_size + self.size, np.float32)
        if self.goal_size:
            vector[[key % self.goal_size for key in _ngrams(goal, self.order)]] = 1.0
        for clause in _CLAUSE_END.split(observation):
            vector[[self.goal_size + key % self.size for key in _ngrams(clause, self.order)]] = 1.0
        return vector

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, from which `encoder_from` makes an equal encoder."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class TokenIds:
    """The words' numbers in a fixed vocabulary, for policies that embed tokens.

    0 is padding, 1 a word that is not in the vocabulary, 2 stands between the goal and the observation, and the
    vocabulary begins at 3. What is too long loses its end.

    Attributes:
        vocabulary: Lower-case words; `TokenIds.of_texts` collects them.
        length: Numbers in an array.
    """

    kind: ClassVar[str] = "tokens"
    vocabulary: Sequence[str]
    length: int = 256

    def __post_init__(self) -> None:
        """Check the arguments."""
        _check_counts(self, length=1)
        words = tuple(self.vocabulary)
        if isinstance(self.vocabulary, str) or not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"TokenIds: vocabulary is a list of at least one word, not {self.vocabulary!r}.")
        object.__setattr__(self, "vocabulary", words)
        object.__setattr__(self, "_number", {word: _FIRST_WORD + k for k, word in enumerate(words)})

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int = 1000, length: int = 256) -> TokenIds:
        """Take the `size` most frequent words of some texts as the vocabulary, ties in alphabetical order."""
        counts = Counter(word for text in texts for word in _words(text))
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(words[:size], length)

    @cached_property
    def space(self) -> Box:
        """Numbers of words, [length], int64."""
        return Box(0, _FIRST_WORD + len(self.vocabulary) - 1, (self.length,), np.int64)

    def __call__(self, goal: str, observation: str) -> NDArray[np.int64]:
        """Return the numbers of the goal's words, the separator, the observation's, and padding."""
        number: Mapping[str, int] = self.__dict__["_number"]
        ids = [number.get(word, _UNKNOWN) for word in _words(goal)]
        ids.append(_SEPARATOR)
        ids += [number.get(word, _UNKNOWN) for word in _words(observation)]
        array = np.full(self.length, _PADDING, np.int64)
        array[: len(ids)] = ids[: self.length]
        return array

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, from which `encoder_from` makes an equal encoder."""
        return {"kind": self.kind, "vocabulary": list(self.vocabulary), "length": self.length}


@dataclass(frozen=True)
class Embeddings:
    """The vectors of a sentence encoder, the goal's and the observation's one after the other.

    Attributes:
        encode: Takes a list of two texts and returns an array [2, size], e.g. the `encode` of a
            `SentenceTransformer`.
        size: Numbers in one text's vector.
    """

    encode: Callable[[list[str]], ArrayLike]
    size: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        _check_counts(self, size=1)
        if not callable(self.encode):
            raise ValueError(f"Embeddings: encode is a function from a list of texts to vectors, not {self.encode!r}.")

    @cached_property
    def space(self) -> Box:
        """Vectors, [2 * size], float32."""
        return Box(-np.inf, np.inf, (2 * self.size,), np.float32)

    def __call__(self, goal: str, observation: str) -> NDArray[np.float32]:
        """Return the goal's vector and the observation's."""
        vectors = np.asarray(self.encode([goal, observation]), np.float32)
        if vectors.shape != (2, self.size):
            raise ValueError(
                f"Embeddings: encode returned the shape {vectors.shape} for two texts, not (2, {self.size})."
            )
        return vectors.reshape(-1)


def encoder_from(value: object) -> Encoder:
    """Return an encoder: one itself, or the plain form of `NgramHash` or `TokenIds`.

    Raises:
        ValueError: If it is neither.
    """
    accepted = "NgramHash(...), TokenIds(...), Embeddings(...), or a mapping such as {'kind': 'ngrams', 'size': 2048}"
    if isinstance(value, Mapping):
        given = dict(value)
        kinds: dict[str, Callable[..., Encoder]] = {NgramHash.kind: NgramHash, TokenIds.kind: TokenIds}
        kind = kinds.get(str(given.pop("kind", "")))
        if kind is None:
            raise ValueError(f"encoder {value!r} has no kind of {', '.join(kinds)}; accepted are {accepted}.")
        try:
            return kind(**given)
        except TypeError as error:
            raise ValueError(f"encoder {value!r}: {error}.") from error
    if not callable(value) or not isinstance(getattr(value, "space", None), Box):
        raise ValueError(f"{value!r} is no encoder; accepted are {accepted}.")
    return value  # type: ignore[return-value]  # what was just checked


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@lru_cache(maxsize=16_384)
def _ngrams(clause: str, order: int) -> tuple[int, ...]:
    """Return a hash for each group of words in a clause."""
    words = _words(clause)
    groups = {
        " ".join(words[start : start + length])
        for length in {*range(1, order + 1), len(words)}
        for start in range(len(words) - length + 1)
    }
    return tuple(stable_hash(group) for group in sorted(groups - {""}))


def _check_counts(encoder: object, **least: int) -> None:
    for name, smallest in least.items():
        value = getattr(encoder, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise ValueError(f"{type(encoder).__name__}: {name} is an integer of at least {smallest}, not {value!r}.")
