"""A folder is whole or not there, whoever is killed and whoever works at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kakeya.embedded.folder import MARKER, is_whole, publish, workplace


def make(parent, content: str):
    with workplace(parent, "model") as here:
        (here.folder / "config.json").write_text(content)
        publish(here, parent / "model")


def fail_halfway(parent):
    with workplace(parent, "model") as here:
        (here.folder / "config.json").write_text("half")
        raise OSError("disk full")


def test_a_published_folder_is_whole_and_leaves_nothing_beside_it(tmp_path):
    make(tmp_path, "{}")
    assert is_whole(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("harm", ["cut a file", "lose a file", "lose the marker", "harm it"])
def test_a_harmed_folder_is_not_whole_and_is_made_again(tmp_path, harm):
    make(tmp_path, "{}")
    folder = tmp_path / "model"
    if harm == "cut a file":
        (folder / "config.json").write_text("{")
    elif harm == "harm it":
        (folder / MARKER).write_text("[1, 2")
    else:
        (folder / (MARKER if "marker" in harm else "config.json")).unlink()
    assert not is_whole(folder)
    make(tmp_path, "again")
    assert is_whole(folder)


def test_the_first_of_two_at_once_wins_and_both_find_it_whole(tmp_path):
    with workplace(tmp_path, "model") as here:
        (here.folder / "config.json").write_text("slow")
        make(tmp_path, "fast")
        publish(here, tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_making_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        fail_halfway(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    program = (
        "import sys, pathlib\n"
        "from kakeya.embedded.folder import workplace\n"
        f"with workplace(pathlib.Path({str(tmp_path)!r}), 'model') as here:\n"
        "    (here.folder / 'half').write_text('x')\n"
        "    print('made', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"made\n"
    make(tmp_path, "{}")  # the child still works: its folder stays
    assert len(list(tmp_path.glob(".model.*.part"))) == 1
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    make(tmp_path, "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
