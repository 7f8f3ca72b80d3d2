"""What turned dynamic in one process starts dynamic in the next.

Contract. `key_of(code, position)` names a place by what its source says, not by where the file lies; `load(key)` is
the set of source texts (`x.size(0)`, `self.step`) that turned dynamic there, empty where nothing is known;
`remember(key, texts)` adds to it. Neither raises for what is on the disk, and nothing read is executed: the files are
JSON, checked against the form below, and the worst a forged one can do is to make a size symbolic.

One file per place, `<cache>/dynamic/<key>.json`: {"format": 1, "sources": [texts]}. Written whole and renamed, so that
readers see the old or the new file. Bounded: so many texts per file, so many files, the oldest go first. A file that
does not have the form is deleted and built anew. `config.dynamic_profile = False` neither reads nor writes, nor
does `config.force_disable_caches`.

Within a process `known_at_start` gives one answer for a key, whatever is remembered meanwhile: what a process does
hangs on earlier ones alone.

State: the disk, and those answers.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import tempfile
import types
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stator import config, events

FORMAT = 1
MOST_FILES = 4096
MOST_SOURCES = 256
LONGEST_SOURCE = 400
LARGEST_FILE = MOST_SOURCES * (LONGEST_SOURCE + 8)


def directory() -> Path:
    """Where the profile lies."""
    if config.cache_dir:
        return Path(config.cache_dir) / "dynamic"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "stator" / "dynamic"


def key_of(code: types.CodeType, position: str = "") -> str:
    """The name of a place: of its source text where that can be read, else of its bytecode; `position` within it."""
    lines = [line for _, _, line in code.co_lines() if line is not None]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{code.co_qualname}\0{position}\0".encode())
    text = (
        "".join(linecache.getline(code.co_filename, line) for line in range(min(lines), max(lines) + 1))
        if lines
        else ""
    )
    if text.strip():
        digest.update(text.encode())
    else:
        digest.update(code.co_code)
        digest.update(repr((code.co_names, code.co_varnames)).encode())
    return digest.hexdigest()


def load(key: str) -> frozenset[str]:
    """The sources known to turn dynamic."""
    if not _enabled():
        return frozenset()
    path = directory() / f"{key}.json"
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError("too large")
        sources = _checked(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return frozenset()
    except (OSError, ValueError, RecursionError):
        events.emit("cache", operation="corrupt", key=key, kind_of="dynamic")
        with suppress(OSError):
            path.unlink()
        return frozenset()
    events.emit("cache", operation="hit", key=key, kind_of="dynamic")
    return frozenset(sources)


_at_start: dict[str, frozenset[str]] = {}


def known_at_start(key: str) -> frozenset[str]:
    """The sources that turned dynamic in earlier processes."""
    if not _enabled():
        return frozenset()
    found = _at_start.get(key)
    if found is None:
        found = _at_start[key] = load(key)
    return found


def remember(key: str, sources: Iterable[str]) -> None:
    """Add sources to what is known; what cannot be written is as if it were not there."""
    if not _enabled():
        return
    known = load(key)
    wanted = known | {source for source in sources if len(source) <= LONGEST_SOURCE}
    if wanted == known:
        return
    kept = sorted(known)[:MOST_SOURCES] + sorted(wanted - known)
    payload = json.dumps({"format": FORMAT, "sources": kept[:MOST_SOURCES]}, ensure_ascii=True)
    folder = directory()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(payload)
            os.replace(temporary, folder / f"{key}.json")
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _evict(folder)
    except OSError:
        return
    events.emit("cache", operation="store", key=key, kind_of="dynamic")


def forget() -> None:
    """Delete the whole profile."""
    for path in _files(directory()):
        with suppress(OSError):
            path.unlink()


def _enabled() -> bool:
    return bool(config.dynamic_profile) and not config.force_disable_caches


def _checked(data: object) -> list[str]:
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("sources"), list):
        raise ValueError("not a profile of this format")
    sources: list[str] = data["sources"]
    if len(sources) > MOST_SOURCES or not all(
        isinstance(text, str) and len(text) <= LONGEST_SOURCE for text in sources
    ):
        raise ValueError("not a list of source texts")
    return sources


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.suffix in (".json", ".tmp")]
    return []


def _evict(folder: Path) -> None:
    files = _files(folder)
    if len(files) <= MOST_FILES:
        return
    dated: list[tuple[float, Path]] = []
    for path in files:
        with suppress(OSError):
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated)[: len(dated) - MOST_FILES * 3 // 4]:
        with suppress(OSError):
            path.unlink()
            events.emit("cache", operation="evict", key=path.stem, kind_of="dynamic")
