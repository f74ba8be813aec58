"""Putting the real question sets and corpus into the cache, from the hub or from local files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from agentgym_envs.cache import cache_dir, make_folder, writing
from agentgym_envs.deepsearch.data import (
    QuestionSet,
    corpus_folder,
    corpus_path,
    question_path,
    question_set,
    read_questions,
)
from agentgym_envs.deepsearch.retrieval.corpus import open_corpus
from agentgym_envs.deepsearch.retrieval.download import DownloadError, download
from agentgym_envs.deepsearch.retrieval.interface import open_retriever

# Pinned, because data indexes are row numbers.
QUESTIONS_AT = "datasets/RUC-NLPIR/FlashRAG_datasets/resolve/bcafb8dd07d453be3cbeeeb3f78be1841bddf92c"
CORPUS_AT = "datasets/PeterJinGo/wiki-18-corpus/resolve/69c1c00ffe7c5554c68d8548355cb22e46aabc51/wiki-18.jsonl.gz"
CORPUS_SHA256 = "7abd929223399cd63c52b499f289bf4f9039be1e9f8c43e1cb3938305b2317db"
CORPUS = "corpus"


def hub() -> str:
    """Address of the Hugging Face hub, or of the mirror that `HF_ENDPOINT` names."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def fetch(sets: Sequence[QuestionSet], corpus: bool, progress: bool = True) -> None:
    """Fetch question sets, and the Wikipedia-2018 corpus, unless they are in the cache.

    Args:
        sets: The question sets.
        corpus: Whether to fetch the corpus (5 GB, and about 40 GB of disk with its index).
        progress: Whether to show progress.

    Raises:
        DownloadError: If something cannot be fetched; what has arrived is kept.
        ValueError: If a file is not what it should be.
    """
    downloads = cache_dir("deepsearch", "downloads")
    for entry in sets:
        if not question_path(entry).is_file():
            file = downloads / entry.name / f"{entry.split}.jsonl"
            download(f"{hub()}/{QUESTIONS_AT}/{entry.public}", file, progress=progress)
            found = ingest_questions(entry, file)
            file.unlink()
            if found != entry.count:
                question_path(entry).unlink()
                raise ValueError(
                    f"{entry.public} of the hub has {found} questions, not {entry.count}: it is another version, whose "
                    "data indexes would name other questions."
                )
    if corpus and corpus_folder() is None:
        file = downloads / "wiki-18.jsonl.gz"
        download(f"{hub()}/{CORPUS_AT}", file, CORPUS_SHA256, progress)
        ingest_corpus(file, progress)
        file.unlink()


def ingest_files(named: Sequence[tuple[str, Path]], progress: bool = True) -> list[str]:
    """Take question sets and a corpus from local files.

    Args:
        named: For each file what it holds, `corpus` or the key of a question set such as `nq/test`, and its path.
        progress: Whether to show progress.

    Returns:
        A line for each file about what it gave.

    Raises:
        ValueError: If a name is unknown, or a file is broken; file and line are named.
    """
    entries = {name: question_set(name) for name, _ in named if name != CORPUS}
    lines = []
    for name, path in named:
        if name == CORPUS:
            lines.append(f"corpus: {ingest_corpus(path, progress):,} passages from {path}")
            continue
        found, entry = ingest_questions(entries[name], path), entries[name]
        whole = "" if found == entry.count else f"; the public file has {entry.count:,}"
        lines.append(f"{name}: {found:,} questions from {path}, data indexes from {entry.first:,}{whole}")
    return lines


def ingest_questions(entry: QuestionSet, source: Path) -> int:
    """Put a question file into the cache, in place of what is there.

    Args:
        entry: Which set it is.
        source: JSON lines of Search-R1's or FlashRAG's shape.

    Returns:
        Number of questions.

    Raises:
        ValueError: If the file is broken, empty, or longer than the set's range of data indexes.
    """
    target = question_path(entry)
    make_folder(target.parent)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    count = 0
    try:
        with writing(target), partial.open("w", encoding="utf-8") as out:
            for question in islice(read_questions(source), entry.count + 1):
                out.write(json.dumps(question._asdict(), ensure_ascii=False) + "\n")
                count += 1
        if not 0 < count <= entry.count:
            found = f"more than {entry.count}" if count else "no"
            raise ValueError(f"{source} holds {found} questions; {entry.key} has 1 to {entry.count}.")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def ingest_corpus(source: Path, progress: bool = True) -> int:
    """Make a corpus and its lexical index, and make it the real corpus.

    Args:
        source: A JSON-lines file of passages.
        progress: Whether to show progress.

    Returns:
        Number of passages.

    Raises:
        ValueError: If the file is broken.
    """
    corpus = open_corpus(source, progress)
    count, folder = len(corpus), corpus.folder
    corpus.close()
    open_retriever("lexical", corpus=folder, progress=progress).close()
    link = corpus_path()
    partial = link.with_name(f".{link.name}.{os.getpid()}")
    with writing(link):
        partial.symlink_to(folder.relative_to(link.parent))
        partial.replace(link)
    return count


def how_to_go_on(error: DownloadError, sets: Sequence[QuestionSet], corpus: bool) -> str:
    """What to do when the hub cannot be reached.

    Args:
        error: Why it cannot.
        sets: The question sets that were asked for.
        corpus: Whether the corpus was.
    """
    missing = [entry.key for entry in sets if not question_path(entry).is_file()]
    if corpus and corpus_folder() is None:
        missing.append(CORPUS)
    files = " ".join(f"{name}=FILE" for name in missing)
    return (
        f"{error}. What has arrived is kept: the same command goes on from there. A mirror is named by HF_ENDPOINT. "
        f"Without a network, bring the missing files here and run: agentgym data deepsearch --from-files {files}"
    )
