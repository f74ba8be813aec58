"""The commands `agentgym data deepsearch` and `agentgym serve-retriever`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro

from agentgym_envs.deepsearch import ingest
from agentgym_envs.deepsearch.data import QUESTION_SETS, QuestionSet, corpus_folder, question_set
from agentgym_envs.deepsearch.retrieval.download import DownloadError
from agentgym_envs.deepsearch.retrieval.interface import MissingPackage, RetrieverFault, open_retriever
from agentgym_envs.deepsearch.tasks import CORPUS as EMBEDDED_CORPUS


@dataclasses.dataclass
class _Data:
    r"""Put DeepSearch's real question sets and corpus into the cache.

    For example:
      agentgym data deepsearch                            fetch all nine question files and Wikipedia 2018 (5 GB)
      agentgym data deepsearch --no-corpus                fetch the questions only
      agentgym data deepsearch --sets nq/test --no-corpus
      agentgym data deepsearch --from-files nq/test=questions.jsonl corpus=passages.jsonl.gz

    Files are JSON lines, plain or gzipped:
      questions  {"question": "...", "golden_answers": ["...", ...]}
      passages   {"id": "...", "contents": "\"Title\"\ntext"} or {"id": "...", "title": "...", "text": "..."}

    What is in the cache already is not fetched again; an interrupted download goes on where it stopped.
    """

    sets: tuple[str, ...] = ()
    """Question sets to fetch, e.g. nq/test; all of them by default."""
    corpus: bool = True
    """Whether to fetch the corpus and build its index (about 40 GB of disk)."""
    from_files: tuple[str, ...] | None = None
    """Take these files and fetch nothing: SET=FILE for questions, corpus=FILE for passages."""


@dataclasses.dataclass
class _Serve:
    """Serve a retriever to other processes and machines, in Search-R1's protocol.

    For example:
      agentgym serve-retriever                                 BM25 over the corpus of this package
      agentgym serve-retriever --corpus real                   over the corpus of `agentgym data deepsearch`
      agentgym serve-retriever --corpus passages.jsonl         over one of your own
      agentgym serve-retriever --retriever dense --port 8001   MiniLM vectors
      curl -d '{"queries": ["capital of Norway"], "topk": 3, "return_scores": true}' 127.0.0.1:8000/retrieve

    It asks for no password: open it to other machines (--host) only in a network that you trust.
    """

    retriever: Literal["lexical", "dense", "hybrid"] = "lexical"
    """What searches: BM25, MiniLM vectors, or both."""
    corpus: str = "embedded"
    """`embedded`, `real`, or a JSON-lines file of passages."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 opens the server to other machines."""
    port: int = 8000
    """Port to listen at; 0 takes any free one."""
    topk: int = 3
    """Passages for requests that do not say how many."""
    queue: int = 1024
    """Requests that may wait; further ones are answered 503 with Retry-After."""
    batch: int = 64
    """Queries that are searched for at once."""
    threads: int = 2
    """Searches at the same time."""


def data_command(arguments: list[str]) -> int:
    """`agentgym data`."""
    usage = "usage: agentgym data deepsearch [options]\n\nExplained by: agentgym data deepsearch --help"
    if arguments[:1] != ["deepsearch"]:
        wanted = arguments[:1] in ([], ["-h"], ["--help"])
        print(usage if wanted else f"error: there is no data for {arguments[0]!r}.\n\n{usage}", file=sys.stderr)
        return 0 if wanted and arguments else 2
    options = tyro.cli(_Data, prog="agentgym data deepsearch", args=arguments[1:])
    sets: Sequence[QuestionSet] = ()
    try:
        if options.from_files is not None:
            if not options.from_files:
                raise ValueError(f"--from-files names no file; {_accepted_files()}.")
            for line in ingest.ingest_files([_named_file(text) for text in options.from_files]):
                print(line)
        else:
            sets = [question_set(key) for key in options.sets] or QUESTION_SETS
            ingest.fetch(sets, options.corpus)
            print(f"in the cache: {', '.join(entry.key for entry in sets)}{', corpus' if options.corpus else ''}")
    except DownloadError as error:
        return _fail(ingest.how_to_go_on(error, sets, options.corpus))
    except (ValueError, OSError, MissingPackage, RetrieverFault) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def serve_command(arguments: list[str]) -> int:
    """`agentgym serve-retriever`."""
    options = tyro.cli(_Serve, prog="agentgym serve-retriever", args=arguments)
    try:
        from agentgym_envs.deepsearch.retrieval.server import Limits, listen, make_app, serve

        limits = Limits(options.queue, options.batch, options.threads)
        retriever = open_retriever(options.retriever, corpus=_corpus(options.corpus), progress=True)
        app = make_app(retriever, options.retriever, options.topk, limits)
        listener = listen(options.host, options.port)
    except (ValueError, OSError, MissingPackage, RetrieverFault) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(
        f"serving {options.retriever} at http://{host}:{listener.getsockname()[1]}/retrieve; Ctrl-C stops", flush=True
    )
    serve(app, listener)
    return 0


def _corpus(name: str) -> Path:
    if name == "embedded":
        return EMBEDDED_CORPUS
    if name != "real":
        return Path(name)
    folder = corpus_folder()
    if folder is None:
        raise ValueError("--corpus real: it is not in the cache yet; run: agentgym data deepsearch")
    return folder


def _named_file(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise ValueError(f"--from-files {text!r} is not accepted; {_accepted_files()}.")
    return name, Path(path)


def _accepted_files() -> str:
    return f"give NAME=FILE, with a name of: {', '.join(entry.key for entry in QUESTION_SETS)}, corpus"


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
