"""What survives a restart."""

from __future__ import annotations

import os
import stat

import pytest

from kakeya.fleet.peers import Remembered
from kakeya.fleet.store import FileStore, MemoryStore, Saved, usable
from tests.fleet.cards import NOW

SAVED = Saved("attic", NOW, (Remembered("10.0.0.2:1", "cellar", NOW),))


async def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "state" / "fleet.json"
    await FileStore(path).save(SAVED)
    assert FileStore(path).load() == SAVED


async def test_only_the_owner_can_read_the_file(tmp_path):
    path = tmp_path / "state" / "fleet.json"
    was = os.umask(0)
    try:
        await FileStore(path).save(SAVED)
    finally:
        os.umask(was)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_saving_again_replaces_the_file_in_one_step(tmp_path):
    path = tmp_path / "fleet.json"
    await FileStore(path).save(SAVED)
    with path.open("rb") as reader:
        await FileStore(path).save(Saved("attic", NOW + 1))
        assert b"cellar" in reader.read()  # the old file, whole
    assert FileStore(path).load() == Saved("attic", NOW + 1)
    assert os.listdir(tmp_path) == ["fleet.json"]


def test_a_node_that_never_ran_has_nothing_saved(tmp_path):
    assert FileStore(tmp_path / "fleet.json").load() == Saved()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"node_id": 3}', b"\xff" * 9, b" " * ((1 << 20) + 1)]
)
def test_a_damaged_file_starts_anew(tmp_path, content):
    path = tmp_path / "fleet.json"
    path.write_bytes(content)
    assert FileStore(path).load() == Saved()


async def test_no_stamp_yet_survives_too(tmp_path):
    path = tmp_path / "fleet.json"
    await FileStore(path).save(Saved("attic"))
    assert FileStore(path).load() == Saved("attic")


async def test_memory_gives_back_what_was_saved():
    store = MemoryStore()
    assert store.load() == Saved()
    await store.save(SAVED)
    assert store.load() == SAVED


@pytest.mark.spec("F-06")
def test_addresses_older_than_a_day_are_not_used():
    old = Remembered("10.0.0.9:1", "old", NOW - 86_401)
    both = Saved("attic", NOW, (*SAVED.addresses, old))
    assert usable(both, now_unix=NOW, remember_s=86_400, max_addresses=9) == SAVED
