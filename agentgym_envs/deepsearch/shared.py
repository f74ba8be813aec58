"""One opened retriever a process for all environments that search the same corpus in the same way.

An index is opened in milliseconds, but each one holds memory (a dense one a model) and, for half a second, a thread
that watches its files. So the last one that was used stays open for the next environment.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs.deepsearch.retrieval import Retriever, open_retriever

_Key = tuple[int, str, Path, int, int]  # process, retriever, corpus with time and size, so that a new one is noticed


@dataclass
class _Entry:
    """An opened retriever and the number of environments that use it."""

    retriever: Retriever
    users: int


_opened: dict[_Key, _Entry] = {}
_lock = threading.Lock()


def acquire(spec: str, corpus: Path) -> Retriever:
    """Return a retriever over a corpus, which is opened if nobody in this process has done so.

    Raises:
        ValueError: If the corpus cannot be opened.
        RetrieverFault: If the retriever cannot.
        ModuleNotFoundError: If a package is missing; the message has the command that installs it.
    """
    status = (corpus / "corpus.json" if corpus.is_dir() else corpus).stat()
    key = os.getpid(), spec, corpus, status.st_mtime_ns, status.st_size
    with _lock:
        entry = _opened.get(key)
        if entry is None:
            entry = _opened[key] = _Entry(open_retriever(spec, corpus=corpus), 0)
        entry.users += 1
        _close_unused(except_for=entry)
        return entry.retriever


def release(retriever: Retriever) -> None:
    """Give back what `acquire` returned. It stays open until another one is opened or given back."""
    with _lock:
        for entry in _opened.values():
            if entry.retriever is retriever:
                entry.users -= 1
                _close_unused(except_for=entry)
                return


def _renew_lock() -> None:
    """Another thread of the parent may have held the lock when this process was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _close_unused(except_for: _Entry) -> None:
    for key, entry in list(_opened.items()):
        if entry.users == 0 and entry is not except_for:
            del _opened[key]
            if key[0] == os.getpid():  # what a parent process opened is the parent's to close
                entry.retriever.close()
