"""The real question sets and corpus, where `agentgym data deepsearch` has put them into the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from agentgym_envs.cache import cache_dir
from agentgym_envs.deepsearch import data
from agentgym_envs.deepsearch.retrieval.corpus import Corpus
from agentgym_envs.deepsearch.tasks import SUBSETS, Question
from agentgym_envs.tasks import Task, TaskTable

COMMAND = "agentgym data deepsearch"
_SUBSET_OF = {name.lower(): name for name in SUBSETS}
_Files = tuple[tuple[data.QuestionSet, Path, int, int], ...]  # with time and size, so that new files are noticed


def real_table() -> TaskTable:
    """Return the tasks whose questions are in the cache, under AgentGym's data indices.

    Indices of sets that are not there are tasks that seeds never choose.

    Raises:
        ValueError: If there are none; the message has the command that fetches them.
    """
    return _table(_files())


def real_question(index: int) -> Question:
    """Return the question with a data index.

    Raises:
        ValueError: If its set is not in the cache.
    """
    for entry, path, *status in _files():
        if entry.first <= index < entry.first + entry.count:
            questions = _questions(path, *status)
            if index - entry.first < len(questions):
                found = questions[index - entry.first]
                return Question(found.question, found.golden_answers, _SUBSET_OF[entry.name], entry.split)
    check_index(index)
    raise ValueError(
        f"DeepSearch: the question with data index {index} is not there: the file of its set has fewer questions than "
        f"the public one. Give a longer one with: {COMMAND} --from-files SET=FILE"
    )


def check_index(index: int) -> None:
    """Refuse the data index of a question whose set is not in the cache.

    Raises:
        ValueError: If it is not; the message has the command that fetches it.
    """
    here = {entry for entry, *_ in _files()}
    for entry in data.QUESTION_SETS:
        if entry.first <= index < entry.first + entry.count and entry not in here:
            raise ValueError(
                f"DeepSearch: the question with data index {index} is one of {entry.key}, which is not fetched; run: "
                f"{COMMAND} --sets {entry.key}. {_these_are_here()}."
            )


def check_chosen(subset: str | None, split: str) -> None:
    """Refuse a choice of tasks of whose question sets none is in the cache; unknown names are left to the table.

    Raises:
        ValueError: If none is; the message has the command that fetches them.
    """
    here = {entry for entry, *_ in _files()}
    chosen = [entry for entry in data.QUESTION_SETS if subset in (None, _SUBSET_OF[entry.name])]
    wanted = [entry for entry in chosen if split in ("all", entry.split)]
    if not wanted or not here.isdisjoint(wanted):
        return
    others = sorted({entry.split for entry in here.intersection(chosen)})
    hint = f" (for those pass {' or '.join(f'split={name!r}' for name in others)})" if others else ""
    raise ValueError(
        f"DeepSearch: source='real' with subset={subset!r} and split={split!r} needs "
        f"{' or '.join(entry.key for entry in wanted)}, not fetched; run: {COMMAND} --sets "
        f"{' '.join(entry.key for entry in wanted)}. {_these_are_here()}{hint}."
    )


def _these_are_here() -> str:
    return f"These sets are here: {', '.join(entry.key for entry, *_ in _files())}"


def real_corpus() -> Path:
    """Return the folder of the corpus.

    Raises:
        ValueError: If it is not there; the message has the command that fetches it.
    """
    folder = data.corpus_folder()
    if folder is None:
        raise ValueError(
            f"DeepSearch: source='real' needs the Wikipedia corpus, which is not in {data.corpus_path().parent}. "
            f"Fetch it with: {COMMAND} (or search elsewhere with retriever='http://...')"
        )
    return folder


def real_hash() -> str:
    """Return a hash of the questions, and of the corpus if there is one."""
    return _hash(_files(), data.corpus_folder())


def _files() -> _Files:
    found = data.question_files()
    if not found:
        raise ValueError(
            f"DeepSearch: source='real' needs the real questions, which are not in {cache_dir('deepsearch')}. "
            f"Fetch them with: {COMMAND} (local files: {COMMAND} --from-files ...), or use source='embedded'."
        )
    return tuple((entry, path, path.stat().st_mtime_ns, path.stat().st_size) for entry, path in found.items())


@lru_cache(maxsize=2)
def _table(files: _Files) -> TaskTable:
    return TaskTable("DeepSearch", _tasks(files))


def _tasks(files: _Files) -> Iterator[Task]:
    known = {entry: len(_questions(path, *status)) for entry, path, *status in files}
    end = max(entry.first + count for entry, count in known.items())
    for entry in data.QUESTION_SETS:
        for index in range(entry.first, min(entry.first + entry.count, end)):
            there = index - entry.first < known.get(entry, 0)
            yield Task(f"deepsearch_{index}", index, _SUBSET_OF[entry.name], entry.split, solvable=there)


@lru_cache(maxsize=len(data.QUESTION_SETS))
def _questions(path: Path, time: int, size: int) -> tuple[data.Question, ...]:
    del time, size  # a changed file is another key
    return tuple(data.read_questions(path))


@lru_cache(maxsize=2)
def _hash(files: _Files, corpus: Path | None) -> str:
    digest = hashlib.sha256()
    for entry, path, *_ in files:
        digest.update(entry.key.encode())
        digest.update(path.read_bytes())
    if corpus is not None:
        opened = Corpus(corpus)
        digest.update(opened.hash.encode())
        opened.close()
    return digest.hexdigest()[:16]
