from __future__ import annotations

import builtins
import errno
import multiprocessing
import os
import stat
import threading
import time

import pytest

from stator import config, events
from stator.reasons import REASONS
from stator.runtime import cache
from stator.runtime.cache import Cache, key_of


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "cache"
    with config.patch(cache_dir=str(path)):
        yield path
    cache._stores.pop(path, None)


@pytest.fixture
def heard():
    found = []
    stop = events.subscribe(found.append, {"cache", "fallback"})
    yield found
    stop()


def entries(place):
    return [file for file in place.glob("?/*") if not file.name.startswith(".")]


def reopen(place):
    """As a new process would see it."""
    cache._stores.pop(place, None)


def test_what_is_put_is_got_by_kind_and_key(place):
    one, other = Cache("kernel"), Cache("program")
    assert one.get(b"k") is None
    one.put(b"k", b"value")
    one.put(b"empty", b"")
    one.put(b"k" * 1000, bytes(range(256)) * 1000)
    assert one.get(b"k") == b"value" and one.get(b"empty") == b"" and other.get(b"k") is None
    assert one.get(b"k" * 1000) == bytes(range(256)) * 1000
    one.put(b"k", b"newer")
    reopen(place)
    assert Cache("kernel").get(b"k") == b"newer"
    with pytest.raises(ValueError):
        Cache("../x")


def test_files_are_the_users_alone(place):
    old = os.umask(0)
    try:
        Cache("kernel").put(b"k", b"value")
    finally:
        os.umask(old)
    for path in (place, *place.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert not list(place.rglob(".*"))


def test_events_say_what_happened(place, heard):
    store = Cache("kernel")
    store.get(b"k")
    store.put(b"k", b"value")
    store.get(b"k")
    entries(place)[0].write_bytes(b"x")
    store.get(b"k")
    assert [event.fields["operation"] for event in heard] == ["miss", "store", "hit", "corrupt", "miss"]
    assert {event.fields["kind_of"] for event in heard} == {"kernel"}


def test_every_truncation_and_every_flipped_bit_is_a_miss(place):
    store = Cache("kernel")
    store.put(b"k", b"payload")
    (entry,) = entries(place)
    good = entry.read_bytes()
    damaged = [good[:length] for length in range(len(good))] + [good + b"x", good * 2]
    for bit in range(8 * len(good)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for data in damaged:
        entry.write_bytes(data)
        assert store.get(b"k") is None
        assert not entry.exists()
    store.put(b"k", b"payload")
    assert store.get(b"k") == b"payload" and entry.read_bytes() == good


def test_an_entry_moved_to_another_name_or_store_is_a_miss(place, tmp_path):
    store = Cache("kernel")
    store.put(b"one", b"1")
    (first,) = entries(place)
    store.put(b"two", b"2")
    (second,) = set(entries(place)) - {first}
    second.write_bytes(first.read_bytes())
    assert store.get(b"two") is None and store.get(b"one") == b"1"
    with config.patch(cache_dir=str(tmp_path / "other")):  # written under another secret
        store.put(b"one", b"evil")
        data = entries(tmp_path / "other")[0].read_bytes()
    first.write_bytes(data)
    assert store.get(b"one") is None


def test_a_lost_secret_loses_the_entries_and_nothing_else(place):
    store = Cache("kernel")
    store.put(b"k", b"1")
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"short")):
        damage(place / "secret")
        reopen(place)
        assert store.get(b"k") is None
        store.put(b"k", b"2")
        reopen(place)
        assert store.get(b"k") == b"2"


# who may touch it


def refused(place, heard):
    store = Cache("kernel")
    store.put(b"k", b"v")
    assert store.get(b"k") is None
    found = [event for event in heard if event.kind == "fallback"]
    assert [event.fields["reason"] for event in found] == ["cache_unusable"]  # once
    return found[0].fields["detail"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_others_can_write_is_refused(place, heard, mode):
    place.mkdir()
    place.chmod(mode)
    assert "writable for others" in refused(place, heard)
    assert not list(place.iterdir())


def test_a_parent_others_can_write_is_refused(place, heard):
    place.mkdir(mode=0o700)
    place.parent.chmod(0o777)
    try:
        assert "writable for others" in refused(place, heard)
        place.parent.chmod(0o1777)  # sticky, as /tmp: others cannot replace what is ours
        reopen(place)
        Cache("kernel").put(b"k", b"v")
        assert Cache("kernel").get(b"k") == b"v"
    finally:
        place.parent.chmod(0o700)


def test_a_directory_of_another_user_is_refused(place, heard, monkeypatch):
    place.mkdir(mode=0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert "another user" in refused(place, heard)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_secret_others_can_read_is_refused(place, heard, mode):
    Cache("kernel").put(b"k", b"v")
    (place / "secret").chmod(mode)
    reopen(place)
    assert "not the user's alone" in refused(place, heard)


def test_symbolic_links_inside_are_not_followed(place, heard, tmp_path):
    store = Cache("kernel")
    store.put(b"k", b"v")
    (entry,) = entries(place)
    outside = tmp_path / "outside"
    outside.write_bytes(entry.read_bytes())
    entry.unlink()
    entry.symlink_to(outside)
    assert store.get(b"k") is None and outside.exists()
    shard = entry.parent
    entry.unlink()
    shard.rmdir()
    (tmp_path / "elsewhere").mkdir()
    shard.symlink_to(tmp_path / "elsewhere")
    reopen(place)
    store.put(b"k", b"v")
    assert store.get(b"k") is None and not list((tmp_path / "elsewhere").iterdir())
    (place / "secret").unlink()
    (place / "secret").symlink_to(outside)
    reopen(place)
    store.put(b"k", b"v")
    assert store.get(b"k") is None
    assert "cache_unusable" in {event.fields.get("reason") for event in heard}


def test_a_pipe_in_an_entrys_place_does_not_hang(place):
    store = Cache("kernel")
    store.put(b"k", b"v")
    (entry,) = entries(place)
    entry.unlink()
    os.mkfifo(entry)
    assert store.get(b"k") is None


def test_the_users_directory_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with config.patch(cache_dir=str(tmp_path / "link")):
        Cache("kernel").put(b"k", b"v")
        assert Cache("kernel").get(b"k") == b"v" and (tmp_path / "real" / "secret").exists()


def test_the_default_directory_follows_xdg(monkeypatch, tmp_path):
    with config.patch(cache_dir=""):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.directory() == tmp_path / "stator"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache.directory() == tmp_path / ".cache" / "stator"


def test_caches_can_be_off(place):
    with config.patch(force_disable_caches=True):
        Cache("kernel").put(b"k", b"v")
        assert Cache("kernel").get(b"k") is None and not place.exists()


# size and disk


def test_the_bound_holds_and_the_oldest_unused_go_first(place, heard):
    with config.patch(cache_size_mb=4):
        store = Cache("kernel")
        value = os.urandom(30_000)
        keys = [b"%d" % number for number in range(200)]
        for number, key in enumerate(keys):
            store.put(key, value)
            if number >= 10 and number % 10 == 0:
                assert store.get(keys[0]) == value  # in use all the time
                time.sleep(0.005)
        total = sum(entry.stat().st_size for entry in entries(place))
        assert total <= 4 << 20
        assert store.get(keys[0]) == value and store.get(keys[-1]) == value
        evicted = [event for event in heard if event.fields.get("operation") == "evict"]
        assert len(evicted) == 200 - len(entries(place)) > 50
        store.put(b"huge", bytes(1 << 20))  # larger than a shard may be
        assert store.get(b"huge") is None


def test_abandoned_temporary_files_go(place):
    store = Cache("kernel")
    store.put(b"k", b"v")
    old, new = (entries(place)[0].parent / name for name in (".1-old", ".1-new"))
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))
    reopen(place)
    store.put(b"k", b"v")
    assert not old.exists() and new.exists()


class FullDisk:
    """A file that takes some bytes and then fails as a full disk does."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        if len(data) > self.left:
            self.file.write(data[: self.left])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= len(data)
        return self.file.write(data)


def test_a_full_disk_is_reported_once_and_leaves_nothing(place, heard, monkeypatch):
    store = Cache("kernel")
    store.put(b"k", b"before")
    real = builtins.open
    for left in range(0, 60, 7):
        monkeypatch.setattr(builtins, "open", lambda *args, left=left: FullDisk(real(*args), left))
        store.put(b"k", b"a newer value")
        store.put(b"other", b"x" * 40)
        monkeypatch.undo()
        assert store.get(b"k") == b"before" and store.get(b"other") is None
    assert not list(place.glob("?/.*"))
    reasons = [event.fields for event in heard if event.kind == "fallback"]
    assert len(reasons) == 1 and "No space left" in reasons[0]["detail"]
    store.put(b"k", b"after")
    assert store.get(b"k") == b"after"


def test_a_deleted_directory_is_made_again(place):
    store = Cache("kernel")
    store.put(b"k", b"v")
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert store.get(b"k") is None
    store.put(b"k", b"again")  # the secret in memory still counts
    assert store.get(b"k") == b"again"
    for path in sorted([*place.rglob("*"), place], reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    store.put(b"k", b"third")
    reopen(place)
    assert store.get(b"k") == b"third"


def test_the_reasons_example_raises_it(heard):
    scope = {}
    exec(REASONS["cache_unusable"].example, scope)
    scope["example"]()
    assert [event.fields["reason"] for event in heard if event.kind == "fallback"] == ["cache_unusable"]
    cache._stores.clear()


# several at once


def hammer(path, seed, rounds, barrier, results):
    with config.patch(cache_dir=path, cache_size_mb=1):
        store = Cache("kernel")
        barrier.wait()
        bad = 0
        for turn in range(rounds):
            key = b"%d" % ((turn * 7 + seed) % 23)
            if turn % 3:
                found = store.get(key)
                bad += found is not None and found != key * 500
            else:
                store.put(key, key * 500)
        results.put((bad, [store.get(b"%d" % number) == b"%d" % number * 500 for number in range(23)].count(True)))


def test_processes_share_one_directory(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    path = str(tmp_path / "cache")
    workers = [context.Process(target=hammer, args=(path, seed, 300, barrier, results)) for seed in range(4)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert all(bad == 0 for bad, _ in found), found
    assert max(there for _, there in found) == 23  # one secret for all of them
    assert not list((tmp_path / "cache").glob("?/.*"))


def test_threads_share_one_store(place):
    store = Cache("kernel")
    wrong = []

    def run(seed):
        for turn in range(200):
            key = b"%d" % ((turn * 7 + seed) % 23)
            store.put(key, key * 50)
            found = store.get(key)
            if found != key * 50:
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# keys


def test_keys_tell_parts_apart(monkeypatch):
    keys = {
        key_of("ab", "c"),
        key_of("a", "bc"),
        key_of("abc"),
        key_of(b"abc"),
        key_of("1"),
        key_of(1),
        key_of(),
        key_of(""),
    }
    assert len(keys) == 8 and all(len(key) == 32 for key in keys)
    assert key_of("a", 1) == key_of("a", 1)
    before = key_of("a")
    for name, value in (("get_host_cpu_name", lambda: "other"), ("llvm_version_info", (1, 2, 3))):
        with monkeypatch.context() as patched:
            patched.setattr(cache.llvmlite.binding, name, value)
            cache.target.cache_clear()
            assert key_of("a") != before
    cache.target.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(cache, "source_version", lambda: "changed")
        assert key_of("a") != before
    cache.target.cache_clear()
    assert key_of("a") == before
