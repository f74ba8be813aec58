r"""Corpora: JSON-lines files of passages, and the form in which they are kept for searching.

Accepted lines, in plain or gzipped files:

    {"id": "7", "contents": "\"Oslo\"\nOslo is the capital of Norway."}           Search-R1
    {"id": "7", "title": "Oslo", "text": "Oslo is the capital of Norway."}        FlashRAG

For searching, a corpus is a folder in the cache, named by the hash of its file:

    corpus.json      {"format": 1, "hash": ..., "passages": number, "source": name of the file}
    passages.jsonl   one {"id", "title", "text"} a line, in the order of the ids
    offsets.npy      int64 [passages + 1]: where each line begins, and the end
    manifest.json    what the files above should be (see `cache.damage`)
    lexical-*/ ...   the indexes, each made when it is first needed

Everything in it is memory-mapped, so all processes share one copy. A passage's position in the order of the ids
is what the indexes know it by, and what breaks ties.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import mmap
import tarfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from agentgym_envs.cache import build_once, cache_dir, damage, write_manifest, write_text
from agentgym_envs.deepsearch.retrieval.interface import Passage, RetrieverFault
from agentgym_envs.deepsearch.retrieval.progress import progress_bar
from agentgym_envs.verbs import well_formed

FORMAT = 1
ACCEPTED = (
    'one JSON object a line with "id" and "contents" (Search-R1: the title in quotes, a line break, the text) '
    'or with "id", "title" and "text" (FlashRAG)'
)


def id_key(passage_id: str) -> tuple[int, str]:
    """The order of passage ids: shorter ones first, so that numbers are in the order of their size."""
    return len(passage_id), passage_id


def passage_of(record: object) -> Passage:
    """Read one record of a corpus, or one document in a server's answer.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(record, dict):
        raise ValueError(f"this is a JSON {type(record).__name__}, not an object")
    name = record.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f'"id" is {name!r}, not a string or an integer')
    fields = {key: record[key] for key in ("title", "text", "contents") if record.get(key) is not None}
    for key, value in fields.items():
        if not isinstance(value, str):
            raise ValueError(f"{key!r} is of type {type(value).__name__}, not a string")
    if "text" in fields:
        title, text = fields.get("title", ""), fields["text"]
    elif "contents" in fields:
        title, text = _split_contents(fields["contents"], fields.get("title"))
    else:
        raise ValueError(f'it has neither "contents" nor "text", but {", ".join(map(repr, record))}')
    one_line = " ".join(title.splitlines())
    return Passage(well_formed(str(name)), well_formed(one_line), well_formed(text))


def contents_of(passage: Passage) -> str:
    """Title and text in one string, as Search-R1 writes them."""
    return f'"{passage.title}"\n{passage.text}'


def _split_contents(contents: str, title: str | None) -> tuple[str, str]:
    first, line_break, rest = contents.partition("\n")
    head = first.strip()
    if len(head) > 1 and head[0] == head[-1] == '"':
        head = head[1:-1]
    if line_break and title in (None, head):
        return head, rest
    return title or "", contents


def read_corpus(path: Path, progress: bool = False) -> Iterator[tuple[int, Passage]]:
    """Read a JSON-lines file of passages.

    Args:
        path: The file; gzipped if its name ends in `.gz`, perhaps with a tar archive of one file inside.
        progress: Whether to show a progress bar.

    Yields:
        Number of the line, from 1, and the passage on it.

    Raises:
        ValueError: If the file cannot be read or a line is broken; file and line are named.
    """
    for number, record in read_lines(path, ACCEPTED, progress):
        try:
            yield number, passage_of(record)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; accepted is {ACCEPTED}.") from None


def read_lines(path: Path, accepted: str, progress: bool = False) -> Iterator[tuple[int, Any]]:
    """Read a JSON-lines file; empty lines are left out.

    Args:
        path: As in `read_corpus`.
        accepted: What a line should be, for the message.
        progress: Whether to show a progress bar.

    Yields:
        Number of the line, from 1, and the JSON value on it.

    Raises:
        ValueError: If the file cannot be read or a line is no JSON; file and line are named.
    """
    number = 0
    try:
        with _opened(path) as (raw, lines), progress_bar(f"reading {path}", path.stat().st_size, progress) as advance:
            done = 0
            for number, line in enumerate(lines, 1):
                if number % 1000 == 0:
                    advance(raw.tell() - done)
                    done = raw.tell()
                if line.isspace():
                    continue
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
                    reason = " ".join(str(error).split())
                    raise ValueError(f"{path}, line {number}: no JSON ({reason}); accepted is {accepted}.") from None
    except (OSError, EOFError, tarfile.TarError) as error:
        where = f", after line {number}" if number else ""
        raise ValueError(f"{path}{where}: cannot be read ({error}); give a JSON-lines file, plain or .gz.") from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], Iterable[bytes]]]:
    """The file, whose position tells the progress, and its lines."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        if path.suffix != ".gz":
            yield raw, raw
            return
        unzipped = io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=raw)))
        if unzipped.peek(512)[257:262] != b"ustar":
            yield raw, unzipped
            return
        # The public wiki-18.jsonl.gz is such an archive, whatever its name says.
        archive = stack.enter_context(tarfile.open(fileobj=unzipped, mode="r|"))
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                yield raw, content
                return
        raise OSError("the archive in it holds no file")


class Corpus:
    """A corpus that is ready for searching. Threads may share it.

    Attributes:
        folder: Where it is.
        hash: Hash of the file that it was made from.
    """

    def __init__(self, folder: Path) -> None:
        """Open it.

        Args:
            folder: What `write_corpus` filled.

        Raises:
            ValueError: If the folder holds no corpus.
        """
        if not (folder / "corpus.json").is_file():
            raise ValueError(f"{folder} is a folder that holds no corpus; give a JSON-lines file of passages.")
        try:
            about = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}, but this version reads {FORMAT}")
            self.folder = folder
            self.hash: str = about["hash"]
            self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
            with (folder / "passages.jsonl").open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(folder, str(error)) from error

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> Passage:
        """The passage at a position in the order of the ids.

        Raises:
            RetrieverFault: If the files are damaged.
        """
        if not 0 <= position < len(self):
            raise IndexError(position)
        try:
            record = json.loads(self._lines[int(self._offsets[position]) : int(self._offsets[position + 1])])
            return Passage(record["id"], record["title"], record["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise RetrieverFault(str(_damaged(self.folder, f"passage {position}: {error}"))) from error

    def line_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each passage's line, [passages]: how long the passages are, without reading them."""
        lengths: npt.NDArray[np.int64] = np.diff(self._offsets)
        return lengths

    def close(self) -> None:
        """Unmap the files; a second call does nothing."""
        self._lines.close()


def open_corpus(source: Path, progress: bool = False) -> Corpus:
    """Open a corpus, which is made ready at its first use.

    Args:
        source: A JSON-lines file of passages, or the folder of a corpus that is ready.
        progress: Whether to show progress.

    Raises:
        ValueError: If it cannot be read, is broken or is empty, or the cache cannot be written.
    """
    if source.is_dir():
        corpus = Corpus(source)
        if found := damage(source):
            corpus.close()
            raise _damaged(source, found)
        return corpus
    if not source.is_file():
        raise ValueError(f"corpus={str(source)!r} does not exist; give a JSON-lines file of passages: {ACCEPTED}.")
    digest = _file_hash(source)
    folder = cache_dir("deepsearch", "corpora") / digest[:32]
    build_once(folder, lambda partial: write_corpus(source, digest, partial, progress))
    return Corpus(folder)


def _damaged(folder: Path, reason: str) -> ValueError:
    return ValueError(
        f"the corpus in {folder} is damaged or of another version ({reason}); delete that folder, and make it anew "
        "from the file that it came from (`agentgym data deepsearch` for the real one)."
    )


def write_corpus(source: Path, digest: str, folder: Path, progress: bool = False) -> None:
    """Fill a folder with what `Corpus` opens.

    Args:
        source: A JSON-lines file of passages.
        digest: Its hash.
        folder: An empty folder.
        progress: Whether to show progress.

    Raises:
        ValueError: If the file is broken or empty, or an id occurs twice; file and line are named.
    """
    offsets, numbers = array("q", [0]), array("q")
    in_order, last = True, (0, "")
    passages = folder / "passages.jsonl"
    with passages.open("wb") as out:
        for number, passage in read_corpus(source, progress):
            out.write(json.dumps(passage._asdict(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            offsets.append(out.tell())
            numbers.append(number)
            key = id_key(passage.id)
            in_order = in_order and last < key
            last = key
    if not numbers:
        raise ValueError(f"{source} holds no passages; accepted is {ACCEPTED}.")
    if not in_order:
        offsets = _sort(source, passages, offsets, numbers)
    np.save(folder / "offsets.npy", np.asarray(offsets, dtype=np.int64))
    about = {"format": FORMAT, "hash": digest, "passages": len(numbers), "source": source.name}
    (folder / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
    write_manifest(folder)


def _sort(source: Path, passages: Path, offsets: array[int], numbers: array[int]) -> array[int]:
    """Bring the lines into the order of their ids; returns the new offsets."""
    with passages.open("rb") as lines:
        keys = [id_key(json.loads(line)["id"]) for line in lines]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    for one, other in pairwise(order):
        if keys[one] == keys[other]:
            raise ValueError(
                f"{source}, line {numbers[other]}: the id {keys[one][1]!r} is that of line {numbers[one]} too; "
                "each passage needs an id of its own."
            )
    moved = array("q", [0])
    ordered = passages.with_suffix(".ordered")
    with passages.open("rb") as lines, ordered.open("wb") as out:
        with mmap.mmap(lines.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for position in order:
                out.write(content[offsets[position] : offsets[position + 1]])
                moved.append(out.tell())
    ordered.replace(passages)
    return moved


def _file_hash(path: Path) -> str:
    """SHA-256 of a file, remembered under its path, size and time, as reading gigabytes takes a while."""
    status = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}".encode()).hexdigest()[:32]
    memo = cache_dir("deepsearch", "hashes") / key
    if memo.is_file() and len(digest := memo.read_text(encoding="utf-8", errors="replace")) == 64:
        return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(ValueError):  # in a cache that cannot be written, the hash is computed each time
        write_text(memo, digest)
    return digest
