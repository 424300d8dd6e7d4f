"""One event a line, and nothing in it that is nobody's business."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from kakeya import logs

SECRET = "the prompt of a stranger"


@pytest.fixture
def heard(capsys):
    """Returns what was logged so far; the process's own logging is put back after."""
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = kept
    root.setLevel(level)
    structlog.reset_defaults()


def fail_with_a_secret_local() -> None:
    prompt = SECRET
    assert prompt
    raise ValueError("broken")


@pytest.mark.parametrize("form", ["json", "auto"])
def test_away_from_a_terminal_each_event_is_one_line_of_json(heard, form):
    logs.configure("info", form)
    log = structlog.get_logger("kakeya.test")
    log.info("peer up", node_id="attic", address="10.0.0.2:1")
    log.warning("two\nlines", text="a\nb")
    first, second = [json.loads(line) for line in heard().splitlines()]
    assert (first["event"], first["node_id"], first["level"]) == ("peer up", "attic", "info")
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "two\nlines"


def test_the_standard_librarys_loggers_take_the_same_form(heard):
    logs.configure("info", "json")
    logging.getLogger("someone.else").warning("heard %s", "it")
    assert json.loads(heard())["event"] == "heard it"


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("error", 1)])
def test_the_level_says_what_is_heard(heard, level, shown):
    logs.configure(level, "json")
    log = structlog.get_logger("kakeya.test")
    for say in (log.debug, log.info, log.warning, log.error):
        say("event")
    assert len(heard().splitlines()) == shown


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_a_trace_says_where_and_not_what_the_variables_held(heard, form):
    logs.configure("info", form)
    try:
        fail_with_a_secret_local()
    except ValueError as error:
        structlog.get_logger("kakeya.test").error("it failed", exc_info=error)
    said = heard()
    assert "ValueError: broken" in said
    assert "fail_with_a_secret_local" in said
    assert SECRET not in said
    if form == "json":
        assert json.loads(said)["event"] == "it failed"


def test_pretty_is_for_reading(heard):
    logs.configure("info", "pretty")
    structlog.get_logger("kakeya.test").info("peer up", node_id="attic")
    said = heard()
    assert "peer up" in said
    assert not said.lstrip().startswith("{")


@pytest.mark.spec("N-06")
def test_a_file_is_moved_away_when_full_and_few_old_ones_are_kept(heard, tmp_path):
    logs.configure("info", "auto", logs.LogFile(str(tmp_path / "log"), max_bytes=4096, num_old=2))
    log = structlog.get_logger("kakeya.test")
    for number in range(400):
        log.info("event", number=number)
    assert heard() == ""
    found = {each.name: each.read_text().splitlines() for each in tmp_path.iterdir()}
    assert set(found) == {"log", "log.1", "log.2"}
    assert all(sum(map(len, lines)) <= 4096 for lines in found.values())
    numbers = [
        json.loads(line)["number"] for name in ("log.2", "log.1", "log") for line in found[name]
    ]
    assert numbers == list(range(numbers[0], 400))  # the latest, none missing
