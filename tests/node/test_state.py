import pytest

from kakeya.errors import Refused
from kakeya.node.state import claim_state


def test_two_nodes_on_one_host_hold_two_folders(tmp_path):
    first, second = claim_state(tmp_path, ""), claim_state(tmp_path, "")
    assert first.folder != second.folder
    first.release()
    assert claim_state(tmp_path, "").folder == first.folder


def test_a_named_node_has_a_folder_of_its_own_and_only_once(tmp_path):
    held = claim_state(tmp_path, "attic/1")
    assert held.folder.parent == tmp_path
    assert claim_state(tmp_path, "attic/1") is None
    assert claim_state(tmp_path, "attic-1").folder != held.folder
    held.release()
    assert claim_state(tmp_path, "attic/1").folder == held.folder


def test_an_unwritable_state_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="state folder cannot be written"):
        claim_state(tmp_path / "file", "")
