"""One SIGINT in the middle of a stream: what fits into the drain ends, what does not is cut."""

from __future__ import annotations

import signal

import openai
import pytest

from tests.cli.nodes import NodeProcess, eventually, running_node
from tests.http.conftest import client_of

ASKED = {"model": "tiny", "prompt": "one two three", "temperature": 0}


def ended_quietly(node: NodeProcess) -> bool:
    """By SIGINT, after it was waited for: status 130, and no trace of anything."""
    assert node.process.wait(60) == 130
    eventually(lambda: not node.reader.is_alive())
    return not any("Traceback" in line or '"level":"error"' in line for line in node.errors)


@pytest.mark.spec("H-11", "N-02")
def test_a_stream_that_fits_into_the_drain_ends_whole(tiny, tmp_path):
    with running_node(tmp_path, "--verifier", str(tiny)) as node, client_of(node) as client:
        want = client.completions.create(**ASKED, max_tokens=400)
        stream = client.completions.create(stream=True, **ASKED, max_tokens=400)
        said = [next(stream).choices[0].text]
        node.process.send_signal(signal.SIGINT)
        pieces = list(stream)
        said += [piece.choices[0].text for piece in pieces]
        assert "".join(said) == want.choices[0].text
        assert pieces[-1].choices[0].finish_reason == "length"
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(**ASKED, max_tokens=1)
        assert ended_quietly(node)


@pytest.mark.spec("H-11", "N-02")
def test_a_stream_that_does_not_is_cut_at_its_end(tiny, tmp_path):
    brief = ("--verifier", str(tiny), "--set", "node.drain_s=0.3")
    with running_node(tmp_path, *brief) as node, client_of(node) as client:
        stream = client.completions.create(stream=True, **ASKED, max_tokens=8000)
        pieces = [next(stream)]
        node.process.send_signal(signal.SIGINT)
        # Cut, and not ended as if it were whole.
        with pytest.raises(openai.APIError):
            pieces += stream
        assert not any(piece.choices[0].finish_reason for piece in pieces)
        assert ended_quietly(node)
