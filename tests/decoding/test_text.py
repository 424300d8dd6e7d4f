"""Stop strings cut exactly before they begin, however the text was cut into tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.decoding.text import Cutter, first_stop, held_len


def cut(pieces: list[str], stops: tuple[str, ...], tail: str = "") -> tuple[list[int], str, bool]:
    """Ids (numbered in order) and text that come out, and whether a stop string ended it."""
    cutter = Cutter(stops)
    ids: list[int] = []
    text = ""
    for i, piece in enumerate(pieces):
        out = cutter.push(i, piece)
        ids.extend(out.ids)
        text += out.text
        if out.is_stopped:
            return ids, text, True
    last = cutter.end(tail)
    return [*ids, *last.ids], text + last.text, last.is_stopped


def test_an_id_that_only_begins_before_the_cut_is_dropped():
    assert cut(["foo", " ha", " ha", "!"], ("ha ha",)) == ([0], "foo ", True)


def test_ids_of_an_unfinished_character_share_its_fate():
    # Two ids make one character; it is the stop string.
    assert cut(["a", "", "é", "b"], ("é",)) == ([0], "a", True)
    assert cut(["a", "", "é", "b"], ("x",)) == ([0, 1, 2, 3], "aéb", False)


def test_an_id_without_text_at_the_end_is_kept():
    assert cut(["a", ""], ("stop",)) == ([0, 1], "a", False)


def test_the_last_flush_may_complete_a_stop_string():
    assert cut(["a", "ha h"], ("ha ha",), tail="a") == ([0], "a", True)


def test_what_is_complete_first_counts():
    assert first_stop("abc", ("abc", "b")) == 1
    assert first_stop("abc", ("bc", "abc")) == 0
    assert first_stop("abc", ("x",)) is None


def test_only_what_may_become_a_stop_string_is_held():
    assert held_len("say ha h", ("ha ha",)) == 4
    assert held_len("say ha ha", ("ha hb",)) == 2
    assert held_len("say", ("ha",)) == 0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_the_cut_does_not_depend_on_the_pieces(pieces, stops):
    text = "".join(pieces)
    ids, by_pieces, stopped = cut(pieces, tuple(stops))
    _, by_letters, letters_stopped = cut(list(text), tuple(stops))
    assert (by_pieces, stopped) == (by_letters, letters_stopped)
    assert not any(stop in by_pieces for stop in stops)
    assert text.startswith(by_pieces)
    # The ids that came out are wholly inside the text that came out.
    assert ids == list(range(len(ids)))
    assert len("".join(pieces[: len(ids)])) <= len(by_pieces)
    if not stopped:
        assert by_pieces == text
        assert len(ids) == len(pieces)
