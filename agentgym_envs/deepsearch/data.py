"""The real question sets and corpus: where they lie in the cache, and which data index names which question.

    <cache>/deepsearch/questions/<set>/<split>.jsonl    e.g. questions/nq/test.jsonl
    <cache>/deepsearch/corpus                           link to the corpus (`retrieval.corpus.Corpus`) and its indexes

`agentgym data deepsearch` fills both. Each line of a question file is

    {"id": "test_0", "question": "...", "golden_answers": ["...", ...]}

in the order of the public file. The data index of row i (from 0) of a file is `QuestionSet.first + i`. These are
AgentGym's ranges: the test sets one after the other, then the training sets. A file made from local data may have
fewer rows than the public one; then the last indexes of its range name nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentgym_envs.cache import cache_dir
from agentgym_envs.deepsearch.retrieval.corpus import read_lines
from agentgym_envs.verbs import well_formed

ACCEPTED = 'one JSON object a line with "question" and "golden_answers", a list of at least one string'


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """One range of the data index.

    Attributes:
        name: The question set, e.g. `"nq"`.
        split: `"test"` or `"train"`.
        first: Data index of its first question.
        count: Number of questions in the public file.
        public: Path of that file in the FlashRAG collection; three sets are tested on their development questions.
    """

    name: str
    split: str
    first: int
    count: int
    public: str

    @property
    def key(self) -> str:
        """How the set is named on the command line, e.g. `nq/test`."""
        return f"{self.name}/{self.split}"


QUESTION_SETS = (
    QuestionSet("nq", "test", 0, 3_610, "nq/test.jsonl"),
    QuestionSet("triviaqa", "test", 3_610, 11_313, "triviaqa/test.jsonl"),
    QuestionSet("popqa", "test", 14_923, 14_267, "popqa/test.jsonl"),
    QuestionSet("hotpotqa", "test", 29_190, 7_405, "hotpotqa/dev.jsonl"),
    QuestionSet("2wikimultihopqa", "test", 36_595, 12_576, "2wikimultihopqa/dev.jsonl"),
    QuestionSet("musique", "test", 49_171, 2_417, "musique/dev.jsonl"),
    QuestionSet("bamboogle", "test", 51_588, 125, "bamboogle/test.jsonl"),
    QuestionSet("nq", "train", 51_713, 79_168, "nq/train.jsonl"),
    QuestionSet("hotpotqa", "train", 130_881, 90_447, "hotpotqa/train.jsonl"),
)


class Question(NamedTuple):
    """One question of a real set.

    Attributes:
        id: Its name in the public file, or the number of its line there.
        question: The question.
        golden_answers: The accepted answers, at least one.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]


def question_set(key: str) -> QuestionSet:
    """Look a set up by its key, e.g. `nq/test`.

    Raises:
        ValueError: If there is none.
    """
    for entry in QUESTION_SETS:
        if entry.key == key:
            return entry
    raise ValueError(f"there is no question set {key!r}; accepted are {', '.join(s.key for s in QUESTION_SETS)}.")


def question_files() -> dict[QuestionSet, Path]:
    """The sets that are in the cache, in the order of their data indexes, and their files."""
    paths = {entry: question_path(entry) for entry in QUESTION_SETS}
    return {entry: path for entry, path in paths.items() if path.is_file()}


def question_path(entry: QuestionSet) -> Path:
    """Where the file of a set is, or would be."""
    return cache_dir("deepsearch", "questions") / entry.name / f"{entry.split}.jsonl"


def corpus_folder() -> Path | None:
    """The real corpus, for `open_retriever(..., corpus=...)`; None if there is none in the cache."""
    path = corpus_path()
    return path.resolve() if (path / "corpus.json").is_file() else None


def corpus_path() -> Path:
    """Where the link to the real corpus is, or would be."""
    return cache_dir("deepsearch", "corpus")


def read_questions(path: Path) -> Iterator[Question]:
    """Read a question file of the cache, or one of Search-R1's or FlashRAG's as JSON lines.

    Args:
        path: The file; gzipped if its name ends in `.gz`.

    Raises:
        ValueError: If it cannot be read or a line is broken; file and line are named.
    """
    for number, record in read_lines(path, ACCEPTED):
        try:
            yield _question_of(record, number)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; accepted is {ACCEPTED}.") from None


def _question_of(record: object, number: int) -> Question:
    if not isinstance(record, dict):
        raise ValueError(f"this is a JSON {type(record).__name__}, not an object")
    question, answers = record.get("question"), record.get("golden_answers")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f'"question" is {question!r}, not a text')
    if not isinstance(answers, Sequence) or isinstance(answers, str) or not answers:
        raise ValueError(f'"golden_answers" is {answers!r}, not a list with at least one answer')
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f'"golden_answers" is {answers!r}, but answers are strings')
    return Question(
        str(record.get("id", number)), well_formed(question.strip()), tuple(well_formed(answer) for answer in answers)
    )
