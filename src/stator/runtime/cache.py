"""The persistent cache: bytes under a key, shared by all processes of one user.

Contract. `Cache(kind).get(key)` returns exactly the bytes some process of this user `put` under that kind and key, or
None; it never raises for what is on the disk. Generated machine code is stored here and executed, so nothing is
returned that was not written by someone who holds the user's secret: each entry carries a keyed BLAKE2 over kind, key,
length and payload. An entry that fails the check is deleted, reported, and built again. Nothing is unpickled.

On disk, below `config.cache_dir` or the user's cache directory (XDG): sixteen shards by the first digit of the entry's
name, and the secret. Directories are 0700, files 0600. The directory must belong to the user, and neither it nor what
it lies in may be writable for others: otherwise somebody could put their own secret there. It is opened once, by
descriptor, and everything goes through that descriptor, so later changes of a path lead nowhere.

Writes go to a temporary file that is renamed over the entry: readers in other processes see the old entry, the new one
or none. Each shard is bounded by a sixteenth of `config.cache_size_mb`; the entries used longest ago go first (a hit
moves an entry's time). What cannot be read or written is as if it were not there, and is reported once.

State: the open stores by path, and for each what was reported and how full its shards were when last counted. All
methods may be called from several threads.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import hmac
import os
import platform
import secrets
import stat
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import llvmlite.binding
import torch

from stator import config
from stator.events import emit

FORMAT = b"stator\x00\x01"  # changes whenever the layout below does
HEADER = struct.Struct(">8sQ32s")  # format, bytes of payload, MAC; the payload follows
SECRET, SECRET_BYTES = "secret", 32
SHARDS = "0123456789abcdef"
ABANDONED = 3600.0  # a temporary file older than this belongs to nobody
FULL = 0.9  # eviction leaves a shard this full

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@functools.cache
def target() -> bytes:
    """What generated code depends on beside its own text: processor, LLVM, torch, stator."""
    features = llvmlite.binding.get_host_cpu_features().flatten()
    parts = (
        platform.machine(),
        llvmlite.binding.get_host_cpu_name(),
        features,
        ".".join(map(str, llvmlite.binding.llvm_version_info)),
        torch.__version__,
        source_version(),
    )
    return _digest(*(part.encode() for part in parts))


@functools.cache
def source_version() -> str:
    """stator's own version, by what its sources say: a changed compiler must not find an older one's code."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(root.rglob("*.py"))
    return _digest(
        *(part for file in files for part in (str(file.relative_to(root)).encode(), file.read_bytes()))
    ).hex()


def _digest(*parts: bytes, key: bytes = b"") -> bytes:
    """BLAKE2 over parts, each with its length, so that no two lists of parts read the same."""
    state = hashlib.blake2b(digest_size=32, key=key)
    for part in parts:
        state.update(struct.pack(">Q", len(part)))
        state.update(part)
    return state.digest()


def key_of(*parts: bytes | str | int) -> bytes:
    """The key for something generated from these parts on this machine by these versions."""
    return _digest(
        target(), *(part if isinstance(part, bytes) else f"{type(part).__name__}:{part}".encode() for part in parts)
    )


class Refused(OSError):
    """A directory or file that others could have made or can change."""


class Cache:
    """Entries of one kind (`kernel`, `program`, `dynamic`, ...)."""

    def __init__(self, kind: str) -> None:
        if not kind.isidentifier():
            raise ValueError(f"{kind!r} is no name of a kind")
        self.kind = kind

    def get(self, key: bytes) -> bytes | None:
        """The bytes stored under `key`, or None."""
        store = _store()
        name = self._name(key)
        try:
            payload = None if store is None else store.read(self.kind, key, name)
        except _Corrupt:
            emit("cache", operation="corrupt", key=name, kind_of=self.kind)
            payload = None
        if store is not None:
            emit("cache", operation="miss" if payload is None else "hit", key=name, kind_of=self.kind)
        return payload

    def put(self, key: bytes, value: bytes) -> None:
        """Store `value` under `key`; whoever asks next, in any process, gets it."""
        store = _store()
        if store is None:
            return
        name = self._name(key)
        if store.write(self.kind, key, name, value):
            emit("cache", operation="store", key=name, kind_of=self.kind)

    def _name(self, key: bytes) -> str:
        return _digest(self.kind.encode(), key).hex()


class _Corrupt(Exception):
    """An entry that is not what was written."""


class _Store:
    """One cache directory, open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.shards: dict[str, int] = {}
        self.filled: dict[str, int] = {}  # shard -> bytes in it, as last counted
        self.retired: list[int] = []  # still open: another thread may be in them
        self.reported: set[str] = set()
        self.directory = -1
        self.directory = _open_root(path)
        self.secret = self._read_secret() or self._make_secret()

    def __del__(self) -> None:
        for descriptor in (*self.shards.values(), *self.retired, self.directory):
            if descriptor >= 0:
                os.close(descriptor)

    # the secret

    def _read_secret(self) -> bytes | None:
        try:
            descriptor = os.open(SECRET, OPEN_FILE, dir_fd=self.directory)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise Refused(f"{self.path / SECRET} is not the user's alone")
            secret = file.read(SECRET_BYTES + 1)
        if len(secret) == SECRET_BYTES:
            return secret
        os.unlink(SECRET, dir_fd=self.directory)  # cut short by a full disk; entries under it no longer count
        return None

    def _make_secret(self) -> bytes:
        temporary = _temporary()
        self._write_file(self.directory, temporary, secrets.token_bytes(SECRET_BYTES))
        try:
            with suppress(FileExistsError):  # another process was first: its secret is everybody's
                os.link(temporary, SECRET, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
        finally:
            os.unlink(temporary, dir_fd=self.directory)
        secret = self._read_secret()
        if secret is None:
            raise Refused(f"{self.path / SECRET} cannot be written")
        return secret

    def _mac(self, kind: str, key: bytes, payload: bytes) -> bytes:
        return _digest(FORMAT, kind.encode(), key, payload, key=self.secret)

    # files

    @staticmethod
    def _write_file(directory: int, name: str, *parts: bytes) -> None:
        """A new file with these bytes, or none at all."""
        descriptor = os.open(name, MAKE_FILE, 0o600, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            os.unlink(name, dir_fd=directory)
            raise

    def shard(self, name: str) -> int:
        """The descriptor of the directory an entry lies in."""
        with self.lock:
            descriptor = self.shards.get(name[0])
            if descriptor is None:
                with suppress(FileExistsError):
                    os.mkdir(name[0], 0o700, dir_fd=self.directory)
                descriptor = os.open(name[0], OPEN_DIRECTORY, dir_fd=self.directory)
                try:
                    _check_own(os.fstat(descriptor), self.path / name[0])
                except OSError:
                    os.close(descriptor)
                    raise
                self.shards[name[0]] = descriptor
            return descriptor

    def read(self, kind: str, key: bytes, name: str) -> bytes | None:
        try:
            shard = self.shard(name)
            descriptor = os.open(name, OPEN_FILE, dir_fd=shard)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.report("cache_unusable", error)
            return None
        try:
            with open(descriptor, "rb") as file:
                payload = self._verified(kind, key, file.read())
                with suppress(OSError):
                    os.utime(descriptor)
                return payload
        except _Corrupt:
            with suppress(OSError):
                os.unlink(name, dir_fd=shard)
            raise
        except OSError as error:
            self.report("cache_unusable", error)
            return None

    def _verified(self, kind: str, key: bytes, data: bytes) -> bytes:
        if len(data) < HEADER.size:
            raise _Corrupt
        written, length, mac = HEADER.unpack_from(data)
        payload = data[HEADER.size :]
        if written != FORMAT or length != len(payload) or not hmac.compare_digest(mac, self._mac(kind, key, payload)):
            raise _Corrupt
        return payload

    def write(self, kind: str, key: bytes, name: str, payload: bytes) -> bool:
        """Whether the entry is there now."""
        size = HEADER.size + len(payload)
        temporary = _temporary()
        try:
            shard = self.shard(name)
            if os.fstat(shard).st_nlink == 0:  # somebody deleted the directory
                with self.lock:
                    self.retired.append(self.shards.pop(name[0]))
                    self.filled.pop(name[0], None)
                shard = self.shard(name)
            if not self._make_room(shard, name[0], size):
                return False
            header = HEADER.pack(FORMAT, len(payload), self._mac(kind, key, payload))
            self._write_file(shard, temporary, header, payload)
            try:
                os.rename(temporary, name, src_dir_fd=shard, dst_dir_fd=shard)
            except BaseException:
                os.unlink(temporary, dir_fd=shard)
                raise
        except OSError as error:
            self.report("cache_unusable", error)
            return False
        with self.lock:
            self.filled[name[0]] = self.filled.get(name[0], 0) + size
        return True

    # the bound

    def _make_room(self, shard: int, letter: str, size: int) -> bool:
        """Evict until `size` more bytes fit; False if they never can."""
        limit = config.cache_size_mb * (1 << 20) // len(SHARDS)
        if size > limit:
            return False
        with self.lock:
            if letter in self.filled and self.filled[letter] + size <= limit:
                return True
            entries, filled = _count(shard)
            if filled + size > limit:
                for _, bytes_, name in sorted(entries):
                    if filled + size <= limit * FULL:
                        break
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=shard)
                    emit("cache", operation="evict", key=name, kind_of="")
                    filled -= bytes_
            self.filled[letter] = filled
            return True

    def report(self, reason: str, error: OSError) -> None:
        """Say once that the cache does not work as it should."""
        with self.lock:
            if reason in self.reported:
                return
            self.reported.add(reason)
        emit("fallback", reason=reason, detail=f"{self.path}: {error.strerror or error}")


def _count(shard: int) -> tuple[list[tuple[int, int, str]], int]:
    """Entries of a shard as (time of last use, bytes, name), and their bytes; abandoned temporary files go."""
    entries: list[tuple[int, int, str]] = []
    with os.scandir(shard) as found:
        for entry in found:
            try:
                status = entry.stat(follow_symlinks=False)
                if not entry.name.startswith("."):
                    entries.append((status.st_mtime_ns, status.st_size, entry.name))
                elif status.st_mtime < time.time() - ABANDONED:
                    os.unlink(entry.name, dir_fd=shard)
            except FileNotFoundError:
                continue
    return entries, sum(size for _, size, _ in entries)


def _temporary() -> str:
    return f".{os.getpid()}-{secrets.token_hex(8)}"


# opening

_stores: dict[Path, _Store | None] = {}
_stores_lock = threading.Lock()


def directory() -> Path:
    """Where the cache lies: the setting, or the user's cache directory."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()).absolute() / "stator"


def _store() -> _Store | None:
    """The open store; None if caches are off or the directory cannot be trusted or made."""
    if config.force_disable_caches:
        return None
    path = directory()
    try:
        store = _stores[path]
    except KeyError:
        with _stores_lock:
            if path not in _stores:
                try:
                    _stores[path] = _Store(path)
                except (OSError, RuntimeError) as error:
                    _stores[path] = None
                    emit("fallback", reason="cache_unusable", detail=f"{path}: {error}")
            store = _stores[path]
    if store is not None and not _still_there(store):
        with _stores_lock:
            if _stores.get(path) is store:
                del _stores[path]
        return _store()
    return store


def _still_there(store: _Store) -> bool:
    """Whether the open directory still has a name; a deleted one is made anew."""
    return os.fstat(store.directory).st_nlink > 0


def _check_own(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if status.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise Refused(f"{path} is writable for others")


def _check_above(path: Path) -> None:
    """Nobody else may be able to put another directory in this one's place."""
    for above in path.parents:
        status = os.stat(above, follow_symlinks=False)
        if status.st_uid not in (0, os.geteuid()):
            raise Refused(f"{above} belongs to another user")
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            raise Refused(f"{above} is writable for others")


def _open_root(path: Path) -> int:
    """Make and open the cache directory, refusing one that others could change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    real = Path(os.path.realpath(path))
    _check_above(real)
    descriptor = os.open(real, OPEN_DIRECTORY)
    try:
        _check_own(os.fstat(descriptor), real)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
