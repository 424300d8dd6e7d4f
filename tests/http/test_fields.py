"""Field by field: what is taken, and what is refused with its name."""

from __future__ import annotations

import json

import pytest

from kakeya.config.http import HttpLimits
from kakeya.http.fields import INTEGERS, NUMBERS, UNSUPPORTED
from tests.http.world import chat_body, world

USER = {"role": "user", "content": "abc"}
ASKING = {
    "audio": {"voice": "x"},
    "best_of": 2,
    "function_call": "f",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "n": 2,
    "prediction": {"type": "content"},
    "reasoning_effort": "high",
    "response_format": {"type": "json_object"},
    "store": True,
    "suffix": "x",
    "tool_choice": "required",
    "tools": [{"type": "function"}],
    "verbosity": "low",
    "web_search_options": {},
}


async def refused(body, path="/v1/chat/completions"):
    async with world() as there:
        answer = await there.client().ask("POST", path, body)
        assert answer.status == 400, answer
        assert set(answer.error) == {"message", "type", "param", "code"}
        assert answer.error["type"] == "invalid_request_error"
        assert not there.verifier.forwards
        return answer.error


@pytest.mark.spec("H-06")
@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_unsupported_field_is_named(name, path, autojump_clock):
    error = await refused(chat_body(prompt="abc") | {name: ASKING[name]}, path)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


@pytest.mark.spec("H-06")
async def test_fields_that_ask_for_nothing_and_unknown_ones_are_taken(autojump_clock):
    neutral = {name: values[0] for name, values in UNSUPPORTED.items() if values}
    nulls = dict.fromkeys([*UNSUPPORTED, *NUMBERS, *INTEGERS, "stop", "stream", "user"])
    body = chat_body() | {"max_tokens": 4}
    async with world() as there:
        client = there.client()
        want = (await client.chat(max_tokens=4)).json["choices"]
        for more in (neutral, nulls | {"max_tokens": 4, "temperature": 0}, {"new_field": [1]}):
            answer = await client.ask("POST", "/v1/chat/completions", body | more)
            assert answer.json["choices"] == want


@pytest.mark.spec("H-06")
@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
async def test_numbers_outside_their_bounds_are_named(name, autojump_clock):
    bounds = (NUMBERS | INTEGERS)[name]
    step = 0.001 if name in NUMBERS else 1
    path = "/v1/completions" if name == "logprobs" else "/v1/chat/completions"
    more = {"logprobs": True} if name == "top_logprobs" else {}
    for value in (bounds.low - step, bounds.high + max(step, abs(bounds.high) * 1e-9), "1", True):
        if value is True and name == "logprobs":
            continue
        error = await refused(chat_body(prompt="abc", **more) | {name: value}, path)
        assert error["param"] == name
        assert name in error["message"]
    async with world() as there:
        for value in (bounds.low, bounds.high if bounds.high < 1e6 else 1000):
            body = chat_body(prompt="abc", max_tokens=3, **more) | {name: value}
            body.pop("max_tokens") if name == "max_completion_tokens" else None
            answer = await there.client().ask("POST", path, body)
            assert answer.status == 200, answer.body


@pytest.mark.spec("H-06")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": "much"}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"user": 7}, "user"),
        ({"model": 7}, "model"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
async def test_a_wrong_field_is_named(fields, param, autojump_clock):
    assert (await refused(chat_body(**{"max_tokens": None} | fields)))["param"] == param


@pytest.mark.spec("H-07")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hello", "messages"),
        ([USER] * 2049, "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
    ],
)
async def test_messages_that_are_none_are_named(messages, param, autojump_clock):
    assert (await refused({"messages": messages}))["param"] == param


@pytest.mark.spec("H-07")
async def test_every_form_of_content_and_every_role_reaches_the_template(autojump_clock):
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}, "d"]
    conversation = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
    ]
    async with world() as there:
        answer = await there.client().chat(messages=conversation)
        assert answer.json["usage"]["prompt_tokens"] == len("s" + "d" + "abcd" + "t")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"messages": [' + b"[" * 100_000, "not JSON"),
        (b'{"messages": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'"text"', "not a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(body, words, autojump_clock):
    assert words in (await refused(body))["message"]


@pytest.mark.spec("H-08")
@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], 3, {}, [1.5], [-1], [[1, "a"]], ["a"] * 33, [True]]
)
async def test_a_prompt_that_is_none_is_named(prompt, autojump_clock):
    assert (await refused({"prompt": prompt, "max_tokens": 3}, "/v1/completions"))[
        "param"
    ] == "prompt"


@pytest.mark.spec("H-08")
async def test_a_prompt_may_be_text_ids_or_a_list_of_either(autojump_clock):
    async with world() as there:
        client = there.client()
        one = await client.complete(prompt="abc", echo=True)
        [choice] = one.json["choices"]
        assert choice["text"].startswith("abc")
        assert len(choice["text"]) == 3 + 8
        assert (await client.complete(prompt=[0, 1, 2], echo=True)).json["choices"] == [choice]
        both = await client.complete(prompt=["abc", "dd"], echo=True)
        assert [each["index"] for each in both.json["choices"]] == [0, 1]
        assert both.json["choices"][0] == choice
        assert both.json["choices"][1]["text"].startswith("dd")
        assert both.json["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 16,
            "total_tokens": 21,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": both.json["usage"]["completion_tokens_details"],
        }
        ids = await client.complete(prompt=[[0, 1, 2], [3, 3]], echo=True)
        assert ids.json["choices"] == both.json["choices"]
        assert (await client.complete(prompt="abc")).json["choices"][0]["text"] == choice["text"][
            3:
        ]


@pytest.mark.spec("H-13")
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_prompt_and_answer_must_fit_into_the_context(name, autojump_clock):
    async with world(max_context_len=50) as there:
        client = there.client()

        async def ask(prompt, **more):
            body = {"prompt": prompt, "temperature": 0} | more
            return await client.ask("POST", "/v1/completions", body)

        assert (await ask("a" * 10, **{name: 40})).json["usage"]["completion_tokens"] == 40
        for prompt, count in (("a" * 10, 41), ("a", 50), ("a" * 50, 1), ("a" * 60, None)):
            answer = await ask(prompt, **{name: count})
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded"
            assert "50" in answer.error["message"]
        full = (await ask("a" * 10)).json
        assert full["usage"]["completion_tokens"] == 40
        assert full["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("num", [1, 16, 17, 18, 40])
async def test_max_tokens_is_never_passed_whatever_the_block(num, autojump_clock):
    async with world() as there:
        answer = (await there.client().chat(max_tokens=num)).json
        assert answer["usage"]["completion_tokens"] == num
        assert len(answer["choices"][0]["message"]["content"]) == num
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_over_the_nodes_own_limit_is_refused_with_both_numbers(autojump_clock):
    async with world(limits=HttpLimits()) as there:
        answer = await there.client().complete(prompt="a" * ((1 << 20) + 1))
        assert answer.status == 400
        assert "1048577 bytes, the limit is 1048576" in answer.error["message"]


@pytest.mark.spec("H-16")
async def test_seeds_and_the_default_temperature(autojump_clock):
    async with world() as there:
        client = there.client()

        async def text(**more):
            answer = await client.complete(max_tokens=30, **more)
            return answer.json["choices"][0]["text"]

        greedy = await text()
        assert await text(seed=5) == greedy
        seeded = await text(seed=5, temperature=None)
        assert seeded == await text(seed=5, temperature=1)
        assert seeded != greedy
        assert await text(seed=-1, temperature=1) == await text(seed=(1 << 64) - 1, temperature=1)
        assert await text(temperature=1) != await text(temperature=1)
        for narrow in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
            assert await text(temperature=1, **narrow) == greedy


async def test_penalties_and_biases_are_applied_as_in_plain_decoding(autojump_clock):
    async with world() as there:
        client = there.client()
        none_twice = await client.complete(max_tokens=20, presence_penalty=2, frequency_penalty=2)
        plain = await client.complete(max_tokens=20)
        forced = await client.complete(max_tokens=20, logit_bias={"4": 100})
        assert none_twice.json["choices"] != plain.json["choices"]
        assert forced.json["choices"][0]["text"] == "e" * 20
        strange = await client.complete(logit_bias={"24": 1})
        assert strange.status == 400
        assert "ids are below 24" in strange.error["message"]


@pytest.mark.spec("H-17")
async def test_logprobs_of_a_chat(autojump_clock):
    async with world() as there:
        answer = await there.client().chat(logprobs=True, top_logprobs=2)
        [choice] = answer.json["choices"]
        content = choice["logprobs"]["content"]
        assert "".join(each["token"] for each in content) == choice["message"]["content"]
        for each in content:
            assert bytes(each["bytes"]).decode() == each["token"]
            assert len(each["top_logprobs"]) == 2
            assert each["top_logprobs"][0]["logprob"] == each["logprob"] < 0
        bare = await there.client().chat(logprobs=True)
        assert all(
            each["top_logprobs"] == [] for each in bare.json["choices"][0]["logprobs"]["content"]
        )
        assert (await there.client().chat()).json["choices"][0]["logprobs"] is None


@pytest.mark.spec("H-17")
async def test_logprobs_of_a_completion(autojump_clock):
    async with world() as there:
        answer = await there.client().complete(logprobs=3)
        [choice] = answer.json["choices"]
        spelled = choice["logprobs"]
        assert "".join(spelled["tokens"]) == choice["text"]
        assert spelled["text_offset"] == list(range(8))
        assert all(len(each) == 3 for each in spelled["top_logprobs"])
        assert all(
            each[token] == logprob
            for each, token, logprob in zip(
                spelled["top_logprobs"], spelled["tokens"], spelled["token_logprobs"], strict=True
            )
        )
        streamed = await there.client().complete(logprobs=3, stream=True)
        pieces = [each["choices"][0]["logprobs"] for each in streamed.events[:-1]]
        tokens = [token for piece in pieces if piece for token in piece["tokens"]]
        assert tokens == spelled["tokens"]
        offsets = [at for piece in pieces if piece for at in piece["text_offset"]]
        assert offsets == spelled["text_offset"]


async def test_a_generation_ends_at_an_eos_id_wherever_in_its_block(autojump_clock):
    """A13: usage counts the id, the text and the scores do not."""
    async with world() as there:
        plain = (await there.client().chat(max_tokens=30)).json["choices"][0]["message"]["content"]
    stop_id = "abcdefghijklmnopqrstuvwx".index(plain[12])
    cut = plain.index(plain[12])
    async with world(eos_ids=(stop_id,)) as there:
        answer = (await there.client().chat(max_tokens=30, logprobs=True)).json
        [choice] = answer["choices"]
        assert choice["message"]["content"] == plain[:cut]
        assert choice["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == cut + 1
        assert len(choice["logprobs"]["content"]) == cut
        assert json.dumps(choice)


@pytest.mark.parametrize("cut", [(7, 9), (3, 4), (14, 18)])
async def test_a_stop_string_is_cut_exactly_whole_and_streamed(cut, autojump_clock):
    async with world() as there:
        client = there.client()
        plain = (await client.complete(max_tokens=40)).json["choices"][0]["text"]
        stop = plain[slice(*cut)]
        want = plain[: plain.index(stop)]
        for stops in (stop, ["never said", stop]):
            [choice] = (await client.complete(max_tokens=40, stop=stops)).json["choices"]
            assert (choice["text"], choice["finish_reason"]) == (want, "stop")
            streamed = await client.complete(max_tokens=40, stop=stops, stream=True)
            said = [each["choices"][0] for each in streamed.events[:-1]]
            assert "".join(each["text"] for each in said) == want
            assert said[-1]["finish_reason"] == "stop"
