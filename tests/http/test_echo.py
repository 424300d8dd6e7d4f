"""Log probabilities of the prompt: `echo` together with `logprobs`."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from kakeya.config.http import HttpLimits
from kakeya.config.node import NodeLimits
from kakeya.config.settings import Settings
from kakeya.decoding.sampling import Score
from kakeya.http.scores import Spelling, TextScores
from tests.decoding.toy import rough_table
from tests.http.world import LETTERS, world

PROMPT = "abcabdabcabe"


async def asked(there, prompt=PROMPT, **more):
    answer = await there.client().complete(prompt=prompt, echo=True, logprobs=3, **more)
    assert answer.status == 200, answer.body
    return answer.json["choices"]


@pytest.mark.spec("H-08", "D-31")
async def test_the_prompts_ids_have_their_log_probabilities(autojump_clock):
    async with world() as there:
        [choice] = await asked(there)
        spelled = choice["logprobs"]
        assert "".join(spelled["tokens"]) == choice["text"]
        assert choice["text"].startswith(PROMPT)
        assert spelled["text_offset"] == list(range(len(PROMPT) + 8))
        assert (spelled["token_logprobs"][0], spelled["top_logprobs"][0]) == (None, None)
        table, ids = rough_table(1), [0, *map(LETTERS.index, choice["text"])]
        for i in range(2, len(ids)):
            row = table[ids[i - 2], ids[i - 1]].astype(np.float64)
            want = row - np.log(np.exp(row).sum())
            assert spelled["token_logprobs"][i - 1] == pytest.approx(want[ids[i]], abs=1e-5)
            best = sorted(range(len(row)), key=lambda each: -row[each])[:3]
            assert list(spelled["top_logprobs"][i - 1]) == [LETTERS[each] for each in best]


@pytest.mark.spec("H-08", "H-12")
async def test_the_answer_is_that_of_a_request_without_them(autojump_clock):
    async with world(settings=Settings(kept_prefixes=0)) as there:
        [choice] = await asked(there, max_tokens=30)
        bare = (await there.client().complete(prompt=PROMPT, logprobs=3, max_tokens=30)).json
        [plain] = bare["choices"]
        assert choice["text"] == PROMPT + plain["text"]
        behind = len(PROMPT)
        for name, values in plain["logprobs"].items():
            offset = behind if name == "text_offset" else 0
            assert choice["logprobs"][name][behind:] == [
                each + offset if offset else each for each in values
            ]
        prompts, forwards = list(there.verifier.prefills), list(there.verifier.forwards)
        half = len(prompts) // 2
        assert prompts[:half] == prompts[half:]  # in the same chunks, and no pass more
        assert forwards[: len(forwards) // 2] == forwards[len(forwards) // 2 :]


@pytest.mark.spec("D-31", "D-36")
async def test_a_prompt_that_is_scored_is_read_whole_and_stays(autojump_clock):
    async with world() as there:
        first = await asked(there)
        assert await asked(there) == first
        assert there.verifier.prefills == [4, 4, 3] * 2
        bare = (await there.client().complete(prompt=PROMPT, logprobs=3)).json
        assert bare["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}


@pytest.mark.spec("H-08", "H-09")
async def test_streamed_pieces_joined_are_the_same(autojump_clock):
    async with world() as there:
        prompts = [PROMPT, "d"]
        whole = await asked(there, prompt=prompts)
        body = {"prompt": prompts, "echo": True, "logprobs": 3, "stream": True}
        *pieces, done = (await there.client().complete(**body)).events
        assert done == "[DONE]"
        for choice in whole:
            mine = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
            assert "".join(each["text"] for each in mine) == choice["text"]
            for name, values in choice["logprobs"].items():
                spelled = [each["logprobs"][name] for each in mine if each["logprobs"]]
                assert [value for piece in spelled for value in piece] == values


@pytest.mark.spec("H-08")
async def test_what_is_too_much_is_refused_before_any_work(autojump_clock):
    limits = HttpLimits(max_scored_prompts=2)
    settings = Settings(node=NodeLimits(max_scored_prompt_len=12))
    async with world(limits=limits, settings=settings) as there:
        client = there.client()
        for prompt, numbers in ((["a"] * 3, ("3", "2")), (PROMPT + "a", ("13", "12"))):
            refused = await client.complete(prompt=prompt, echo=True, logprobs=0)
            assert refused.status == 400
            assert all(number in refused.error["message"] for number in numbers)
            assert not there.verifier.prefills
            for less in ({"echo": True}, {"logprobs": 0}):
                assert (await client.complete(prompt=prompt, **less)).status == 200
            there.verifier.prefills.clear()
        assert len(await asked(there, prompt=[PROMPT, "b"])) == 2


@pytest.mark.spec("H-10", "D-28")
async def test_a_client_that_leaves_while_its_prompt_is_scored_stops_it(autojump_clock):
    async with world() as there:
        there.ready.engine.device.job_s = 0.5
        client = there.client()
        body = {"prompt": PROMPT * 50, "echo": True, "logprobs": 1}
        await client.send("POST", "/v1/completions", body)
        await trio.sleep(10)
        await client.leave()
        await trio.sleep(1.5)
        before = len(there.verifier.prefills)
        assert 5 < before < 100
        await trio.sleep(20)
        assert len(there.verifier.prefills) == before


@pytest.mark.spec("H-09", "D-10")
async def test_logits_that_are_not_finite_in_the_prompt_are_a_500(autojump_clock):
    async with world(nan_rows=lambda position, num_rows: position == 5) as there:
        answer = await there.client().complete(prompt=PROMPT, echo=True, logprobs=1)
        assert answer.status == 500
        assert "not finite" in answer.error["message"]
        assert (await there.client().complete(prompt="abc", max_tokens=1)).status == 200


@pytest.mark.spec("H-17")
def test_of_two_alternatives_that_look_alike_the_better_one_stays():
    scores = TextScores(Spelling(lambda token_id: b"x" if token_id else b"y", frozenset()))
    piece = scores.piece((1,), [Score(-1.0, ((1, -1.0), (0, -2.0), (2, -3.0)))])
    assert piece["top_logprobs"] == [{"x": -1.0, "y": -2.0}]
    assert list(piece["top_logprobs"][0]) == ["x", "y"]


@pytest.mark.spec("H-17")
def test_offsets_count_characters_of_the_text():
    """Ids that are parts of a character, and special ones that the text shows or does not."""
    spelt = {0: b"<s>", 1: "č".encode()[:1], 2: "č".encode()[1:], 3: b"ab", 4: b"<e>"}
    some = Score(-1.0, ())

    def offsets(echoed, *ids):
        scores = TextScores(Spelling(spelt.__getitem__, frozenset({0, 4})), echoed)
        return scores.piece(ids, [None, *[some] * (len(ids) - 1)])["text_offset"]

    piece = TextScores(Spelling(spelt.__getitem__, frozenset({0, 4}))).piece((1, 2, 3), [some] * 3)
    assert piece["tokens"] == ["bytes:\\xc4", "bytes:\\x8d", "ab"]
    assert offsets("čab", 0, 1, 2, 3, 3) == [0, 0, 0, 1, 3]
    assert offsets("ab<e>ab", 0, 3, 4, 3, 4) == [0, 0, 2, 5, 7]
