"""Server-sent events: their order, their silence and their errors."""

from __future__ import annotations

import pytest
import trio

from kakeya.config.http import HttpLimits
from kakeya.config.node import NodeLimits
from kakeya.config.settings import Settings
from tests.http.world import chat_body, world

CHAT = "/v1/chat/completions"


def text_of(events) -> str:
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    return "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in choices)


@pytest.mark.spec("H-09", "H-12")
@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_chat_stream_from_its_first_piece_to_done(wants_usage, autojump_clock):
    async with world() as there:
        client = there.client()
        whole = (await client.chat(max_tokens=30)).json
        options = {"include_usage": True} if wants_usage else None
        answer = await client.chat(max_tokens=30, stream=True, stream_options=options)
        assert answer.fields["content-type"].startswith("text/event-stream")
        *pieces, done = answer.events
        assert done == "[DONE]"
        assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert text_of(pieces) == whole["choices"][0]["message"]["content"]
        if wants_usage:
            *pieces, last = pieces
            assert last["choices"] == []
            assert last["usage"] == whole["usage"]
            assert all(piece["usage"] is None for piece in pieces)
        else:
            assert not any("usage" in piece for piece in pieces)
        reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
        assert reasons == [None] * (len(pieces) - 1) + ["length"]
        assert pieces[-1]["timings"]["predicted_n"] == 30
        assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
        assert len({piece["id"] for piece in pieces}) == 1
        # The connection goes on behind a stream.
        assert (await client.ask("GET", "/health")).status == 200


@pytest.mark.spec("H-09")
async def test_a_completion_stream_of_several_prompts_with_echo(autojump_clock):
    async with world() as there:
        client = there.client()
        asked = {"prompt": ["abc", "dd"], "echo": True}
        whole = (await client.complete(**asked)).json["choices"]
        *pieces, _ = (await client.complete(stream=True, **asked)).events
        for choice in whole:
            mine = [p for p in pieces if p["choices"][0]["index"] == choice["index"]]
            assert text_of(mine) == choice["text"]


@pytest.mark.spec("H-12")
async def test_usage_and_timings_count_drafts_as_they_went(autojump_clock):
    async with world() as there:
        there.ready.engine.pace.__init__(there.ready.engine.limits)
        answer = (await there.client().complete(prompt="abcabcabcabc", max_tokens=60)).json
        details, timings = answer["usage"]["completion_tokens_details"], answer["timings"]
        accepted = details["accepted_prediction_tokens"]
        assert timings["draft_n"] == accepted + details["rejected_prediction_tokens"]
        assert timings["draft_n_accepted"] == accepted
        assert timings["predicted_n"] == answer["usage"]["completion_tokens"] == 60
        assert timings["prompt_n"] == answer["usage"]["prompt_tokens"] == 12
        rate = timings["predicted_n"] / timings["predicted_ms"] * 1000
        assert timings["predicted_per_second"] == pytest.approx(rate, rel=0.01)


@pytest.mark.spec("H-12", "D-36")
async def test_the_next_turn_of_a_chat_says_how_much_of_it_was_kept(autojump_clock):
    async with world() as there:
        first = {"role": "user", "content": "abcdefgh" * 3 + "a"}
        answer = (await there.client().chat(messages=[first], max_tokens=9)).json
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        turns = [first, answer["choices"][0]["message"], {"role": "user", "content": "bca" * 5}]
        asked = {"messages": turns, "max_tokens": 9, "seed": 1}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        events = (await there.client().chat(**asked, **streamed)).events
        usage = events[-2]["usage"]
        assert usage["prompt_tokens"] == 25 + 9 + 15
        assert usage["prompt_tokens_details"] == {"cached_tokens": 24}
        again = (await there.client().chat(**asked)).json
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}
        assert (again["timings"]["cache_n"], again["timings"]["prompt_n"]) == (48, 1)
        assert text_of(events) == again["choices"][0]["message"]["content"]


@pytest.mark.spec("H-09")
async def test_what_is_wrong_before_the_first_block_is_a_status(autojump_clock):
    async with world(nan_rows=lambda position, num_rows: True) as there:
        client = there.client()
        for more in ({"stream": True}, {}):
            answer = await client.chat(**more)
            assert answer.status == 500
            assert "not finite" in answer.error["message"]
        assert (await client.chat(model="nonesuch", stream=True)).status == 404
        assert (await client.ask("GET", "/health")).status == 200  # the node lives


@pytest.mark.spec("H-09")
async def test_what_goes_wrong_in_a_stream_is_an_event(autojump_clock):
    async with world(nan_rows=lambda position, num_rows: position > 12) as there:
        client = there.client()
        answer = await client.chat(max_tokens=60, stream=True)
        assert answer.status == 200
        error = answer.events[-1]["error"]
        assert "not finite" in error["message"]
        assert error["type"] == "server_error"
        assert text_of(answer.events[:-1])
        assert (await client.chat(max_tokens=3)).status == 200


@pytest.mark.spec("H-09")
async def test_a_long_silence_is_filled_with_comments(autojump_clock):
    """In the queue, while the model loads, in a prefill."""
    limits = HttpLimits(keepalive_s=5.0)
    async with world(limits=limits, is_loaded=False) as there:
        client = there.client()
        await client.send("POST", CHAT, chat_body(stream=True))
        await trio.sleep(17)
        there.slot.fill(there.ready)
        answer = await client.answer()
        assert answer.body.startswith(b": still at work\n\n" * 3 + b"data: ")
        assert answer.events[-1] == "[DONE]"


@pytest.mark.spec("H-09")
async def test_what_goes_wrong_behind_a_comment_is_an_event(autojump_clock):
    async with world(limits=HttpLimits(keepalive_s=5.0), max_context_len=20) as there:
        there.ready.engine.device.job_s = 7.0
        client = there.client()
        answer = await client.ask("POST", CHAT, chat_body(stream=True, logit_bias={"99": 1}))
        assert answer.status == 400  # seen at once
        loading = world(is_loaded=False, max_context_len=20)
        async with loading as other:
            asking = other.client()
            await asking.send("POST", CHAT, chat_body(stream=True, max_tokens=100))
            await trio.sleep(6)
            other.slot.fill(other.ready)
            answer = await asking.answer()
            assert answer.status == 200
            assert answer.events[-1]["error"]["code"] == "context_length_exceeded"


async def test_a_whole_answer_has_no_comments(autojump_clock):
    async with world(step_s=lambda block_len: 7.0) as there:
        answer = await there.client().chat(max_tokens=4)
        assert answer.json["usage"]["completion_tokens"] == 4


@pytest.mark.spec("H-05")
async def test_a_full_queue_is_429_with_retry_after(autojump_clock):
    one = Settings(node=NodeLimits(max_generations=1, max_waiting_generations=1))
    async with world(settings=one) as there:
        clients = [there.client() for _ in range(3)]
        for client in clients[:2]:
            await client.send("POST", CHAT, chat_body(max_tokens=50))
            await trio.sleep(0.1)
        answer = await clients[2].chat(stream=True)
        assert answer.status == 429
        assert answer.error["code"] == "queue_full"
        assert int(answer.fields["retry-after"]) > 0
        assert [(await client.answer()).status for client in clients[:2]] == [200, 200]


@pytest.mark.spec("H-05", "V-10")
@pytest.mark.parametrize("stream", [False, True])
async def test_no_room_for_the_kv_is_503_with_retry_after(stream, autojump_clock):
    async with world(max_kv_len=20) as there:
        answer = await there.client().chat(max_tokens=100, stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert int(answer.fields["retry-after"]) > 0
        assert (await there.client().chat(max_tokens=8)).status == 200
        assert there.admission.num_running == 0


async def test_many_requests_over_few_places_are_all_answered(autojump_clock):
    few = Settings(node=NodeLimits(max_generations=3, max_waiting_generations=100))
    async with world(settings=few) as there:
        answers = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answers.append(await there.client().chat(max_tokens=5))

            for _ in range(100):
                nursery.start_soon(ask)
        assert {answer.status for answer in answers} == {200}
        assert len({str(answer.json["choices"]) for answer in answers}) == 1
