"""`python -m agentgym_envs.deepsearch.build`: build corpus, questions and manifest anew.

Takes the packages of the extra `deepsearch-build`; other versions of them give other data.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgym_envs.deepsearch import tasks
from agentgym_envs.deepsearch.build import questions
from agentgym_envs.deepsearch.build.passages import write
from agentgym_envs.deepsearch.build.questions import World
from agentgym_envs.deepsearch.build.sources import PACKAGES, entities, versions
from agentgym_envs.deepsearch.retrieval import Passage, open_retriever
from agentgym_envs.deepsearch.tasks import Question


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the data from the command line."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_envs.deepsearch.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=tasks.DATA, help="folder to write to (default: where they belong)")
    options = parser.parse_args(arguments)
    console = Console()
    build(options.out, console)
    return 0


def build(folder: Path, console: Console) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    with console.status("Reading the data packages"):
        found = entities()
        written = write(found)
        corpus = corpus_lines(written.passages)
        write_lines(folder / tasks.CORPUS.name, corpus)
    retriever = open_retriever("lexical", corpus=folder / tasks.CORPUS.name, progress=True)
    made = questions.make(World.of(found, written), retriever, console.print)
    retriever.close()
    asked = question_lines(made)
    write_lines(folder / tasks.QUESTIONS.name, asked)
    manifest = {
        "hash": content_hash(corpus, asked),
        "passages": len(corpus),
        "questions": dict(Counter(question.subset for question in made)),
        "packages": [
            {"name": name, "version": version, "licence and data": PACKAGES[name]}
            for name, version in versions().items()
        ],
    }
    (folder / tasks.MANIFEST.name).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    console.print(f"{len(corpus):,} passages and {len(made):,} questions in {folder}")


def corpus_lines(passages: Iterable[Passage]) -> list[str]:
    """Return the lines of the corpus file."""
    return [_line(passage._asdict()) for passage in passages]


def question_lines(made: Iterable[Question]) -> list[str]:
    """Return the lines of the question file."""
    return [_line(question.to_json()) for question in made]


def content_hash(corpus: Iterable[str], asked: Iterable[str]) -> str:
    """Return the hash of the data: of their lines, so that the compression does not matter."""
    digest = hashlib.sha256()
    for line in (*corpus, *asked):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:32]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a gzipped file of lines; without name and time in it, the same lines are the same bytes."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as file:
        for line in lines:
            file.write(line.encode() + b"\n")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    raise SystemExit(main())
