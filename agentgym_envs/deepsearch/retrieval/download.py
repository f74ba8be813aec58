"""Downloads that show progress, resume where they stopped, and are checked."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from pathlib import Path

from agentgym_envs.cache import make_folder, writing
from agentgym_envs.deepsearch.retrieval.progress import progress_bar

SILENCE_LIMIT_S = 10.0
"""How long the server may stay silent, when connecting and within a download."""
ATTEMPTS = 5
"""Attempts in a row that bring no byte before a download that had begun is given up."""
CHUNK_BYTES = 1 << 18


class DownloadError(Exception):
    """A file could not be fetched; what has arrived is kept, and the next attempt goes on from there."""


def download(url: str, target: Path, sha256: str = "", progress: bool = False) -> None:
    """Fetch a file, going on from what an earlier attempt left beside it.

    Args:
        url: Its address.
        target: Where it is put when complete; a file that is there already stays.
        sha256: What its hash must be; empty takes the one that the server names, if any.
        progress: Whether to show a progress bar.

    Raises:
        DownloadError: If it cannot be fetched, or is not what it should be.
        ValueError: If it cannot be written.
    """
    if target.exists():
        return
    make_folder(target.parent)
    partial = target.with_name(f"{target.name}.part")
    arrived, failures = False, 0
    while True:
        before = _size(partial)
        try:
            named = _go_on(url, partial, progress)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416:  # more is here than the file has: it has changed
                partial.unlink(missing_ok=True)
            raise DownloadError(f"{url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, _Incomplete) as error:
            brought_some = _size(partial) > before
            arrived, failures = arrived or brought_some, 0 if brought_some else failures + 1
            if not arrived or failures == ATTEMPTS:
                reason = getattr(error, "reason", "") or error or type(error).__name__
                raise DownloadError(f"{url} cannot be fetched: {reason}") from error
    wanted = sha256 or named
    if wanted:
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            partial.unlink()
            raise DownloadError(
                f"{url} has the SHA-256 {found}, not {wanted}: damaged, or changed since; it was removed"
            )
    partial.replace(target)


class _Incomplete(Exception):
    pass


def _go_on(url: str, partial: Path, progress: bool) -> str:
    """Fetch the rest of a file; returns the hash that the server names, if any."""
    done = _size(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(request, timeout=SILENCE_LIMIT_S) as response:
        if response.status != 206:
            done = 0  # the server begins anew
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with (
            partial.open("ab" if done else "wb") as file,
            progress_bar(f"fetching {url}", total or 0, progress) as advance,
        ):
            advance(done)
            while chunk := response.read(CHUNK_BYTES):
                with writing(partial):
                    file.write(chunk)
                advance(len(chunk))
                done += len(chunk)
    if total is not None and done < total:
        raise _Incomplete(f"{done} of {total} bytes arrived")
    # The hub names the hash of large files in this header (of the answer that led here, or in the ETag).
    tag = (response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or "").strip('"')
    return tag if re.fullmatch(r"[0-9a-f]{64}", tag) else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
