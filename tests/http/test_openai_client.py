"""The official openai client against a node."""

from __future__ import annotations

import math
import threading

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.cli.nodes import eventually, running_node
from tests.http.conftest import client_of
from tests.http.test_live import generations
from tests.live.client import hear

KEY = "a-key-of-sixteen-or-more"
MESSAGES = [{"role": "user", "content": "one two three, one two three, one"}]
GREEDY = {"temperature": 0, "max_tokens": 40}


def chat(door, **more):
    asked = {"model": door.model, "messages": MESSAGES, **GREEDY} | more
    return door.client.chat.completions.create(**asked)


def completion(door, **more):
    asked = {"model": door.model, "prompt": "one two three, one two", **GREEDY} | more
    return door.client.completions.create(**asked)


@pytest.fixture(scope="module")
def strict(tiny, tmp_path_factory):
    """A node that asks for a key, and serves one generation with one more waiting."""
    home = tmp_path_factory.mktemp("strict")
    (home / "key").write_text(KEY)
    few = ("--set", "node.max_generations=1", "--set", "node.max_waiting_generations=1")
    args = ("--verifier", str(tiny), "--http-key-file", str(home / "key"), *few)
    with running_node(home, *args) as node:
        yield node


def test_models_lists_the_verifier_and_finds_it_by_name(door):
    assert [each.id for each in door.client.models.list()] == [door.model]
    assert door.client.models.retrieve(door.model).owned_by == "kakeya"
    with pytest.raises(openai.NotFoundError, match="nonesuch"):
        door.client.models.retrieve("nonesuch")


def test_a_chat_completion_has_text_reason_and_usage(door):
    answer = chat(door)
    [choice] = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == 40 + answer.usage.prompt_tokens
    details = answer.usage.completion_tokens_details
    assert answer.timings["draft_n_accepted"] == details.accepted_prediction_tokens
    drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
    assert answer.timings["draft_n"] == drafted > 0


def test_streamed_pieces_joined_are_the_whole_answer(door):
    whole = chat(door)
    pieces = list(chat(door, stream=True, stream_options={"include_usage": True}))
    assert pieces[0].choices[0].delta.role == "assistant"
    said = [piece.choices[0] for piece in pieces[:-1]]
    assert "".join(each.delta.content or "" for each in said) == whole.choices[0].message.content
    assert [each.finish_reason for each in said if each.finish_reason] == ["length"]
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens == 40
    assert all(piece.usage is None for piece in pieces[:-1])
    assert len({piece.id for piece in pieces}) == 1


def test_an_unknown_model_is_not_found(door):
    with pytest.raises(openai.NotFoundError) as error:
        chat(door, model="gpt-4")
    assert error.value.body["code"] == "model_not_found"
    assert error.value.body["param"] == "model"


@pytest.mark.spec("H-05", "H-06")
def test_what_is_wrong_is_a_bad_request_that_names_the_field(door):
    for param, more in (
        ("temperature", {"temperature": 3}),
        ("n", {"n": 2}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("max_tokens", {"max_tokens": 0}),
        ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]}),
    ):
        with pytest.raises(openai.BadRequestError, match=param.split("[")[0]) as error:
            chat(door, **more)
        assert error.value.param == param
        assert error.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as error:
        completion(door, suffix="x")
    assert (error.value.param, error.value.code) == ("suffix", "unsupported_parameter")


@pytest.mark.spec("H-13")
def test_what_does_not_fit_is_context_length_exceeded(door):
    for more in ({"max_tokens": 8192}, {"prompt": "a" * 8192}, {"max_tokens": 8192 - 21}):
        with pytest.raises(openai.BadRequestError) as error:
            completion(door, **more)
        assert error.value.code == "context_length_exceeded"


@pytest.mark.spec("H-03")
def test_a_wrong_key_is_an_authentication_error(strict):
    with (
        client_of(strict, api_key="another") as client,
        pytest.raises(openai.AuthenticationError) as error,
    ):
        client.models.list()
    assert error.value.code == "invalid_api_key"
    with client_of(strict, api_key=KEY) as client:
        assert [each.id for each in client.models.list()] == ["tiny"]


@pytest.mark.spec("H-05", "N-08")
def test_a_full_queue_is_a_rate_limit_error_that_says_when_to_come_back(strict):
    asked = {"model": "tiny", "prompt": "one two", "max_tokens": 8000, "stream": True}
    with client_of(strict, api_key=KEY) as client:
        running = client.completions.create(**asked)
        next(running)
        waiting = threading.Thread(
            target=lambda: client.completions.create(**asked | {"max_tokens": 1}).close()
        )
        waiting.start()
        base = f"http://{strict.http}"
        eventually(lambda: generations(base, KEY)["waiting"] == 1)
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(**asked)
        assert error.value.code == "queue_full"
        assert int(error.value.response.headers["retry-after"]) > 0
        running.close()  # its place is free, and the other's turn comes
        waiting.join(60)
        assert not waiting.is_alive()


@pytest.mark.spec("H-15")
def test_the_raw_answer_has_its_fields(door):
    asked = {"model": door.model, "prompt": "one", **GREEDY}
    raw = door.client.completions.with_raw_response.create(
        **asked, extra_headers={"x-request-id": "mine-8"}
    )
    assert raw.headers["x-request-id"] == "mine-8"
    assert raw.headers["content-type"] == "application/json"
    answer = raw.parse()
    assert answer.usage.completion_tokens == 40
    assert answer.id.startswith("cmpl-")
    own = [door.client.models.with_raw_response.list().headers["x-request-id"] for _ in range(2)]
    assert len(set(own)) == 2
    with pytest.raises(openai.NotFoundError) as error:
        completion(door, model="gpt-4")
    assert error.value.request_id


def test_a_completion_takes_texts_and_ids_and_echoes_them(door):
    text = "one two"
    alone = completion(door, prompt=text)
    both = completion(door, prompt=[text, "aa bb"], echo=True)
    assert [each.index for each in both.choices] == [0, 1]
    assert both.choices[0].text == text + alone.choices[0].text
    assert completion(door, prompt=list(text.encode())).choices[0].text == alone.choices[0].text
    pieces = list(
        completion(door, prompt=text, stream=True, stream_options={"include_usage": True})
    )
    said = [piece.choices[0].text for piece in pieces[:-1]]
    assert "".join(said) == alone.choices[0].text
    assert (pieces[-1].choices, pieces[-1].usage.completion_tokens) == ([], 40)


def test_a_stop_text_ends_it_just_before(door):
    whole = chat(door).choices[0].message.content
    stop = whole[5:8]
    for stops in (stop, ["never said", stop]):
        choice = chat(door, stop=stops).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content == whole[: whole.index(stop)]
        pieces = [piece.choices[0] for piece in chat(door, stop=stops, stream=True)]
        assert "".join(each.delta.content or "" for each in pieces) == choice.message.content
        assert pieces[-1].finish_reason == "stop"


def test_a_seed_gives_its_text_again(door):
    warm = {"temperature": 1.3, "max_completion_tokens": 60, "max_tokens": None}
    texts = [chat(door, seed=seed, **warm).choices[0].message.content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    assert chat(door, seed=5).choices == chat(door, seed=6).choices  # greedy: it is taken


def reference_scores(folder, ids):
    """[len(ids), vocab_size] log probabilities of what follows, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


@pytest.mark.spec("H-17", "D-31")
def test_log_probabilities_of_prompt_and_answer_are_the_models(door, tiny):
    prompt = "one two three, one two"
    answer = completion(door, prompt=prompt, echo=True, logprobs=3, max_tokens=20)
    spelled = answer.choices[0].logprobs
    assert "".join(spelled.tokens[: len(prompt)]) == prompt
    assert len(spelled.tokens) == answer.usage.total_tokens
    assert spelled.token_logprobs[0] is None
    said = hear(door.node.grpc, text=prompt, raw=True, max_tokens=20, plain=True)
    ids = [*prompt.encode(), *said.ids]
    scores = reference_scores(tiny, ids)
    for i, each in enumerate(ids[1:]):
        assert spelled.token_logprobs[i + 1] == pytest.approx(float(scores[i, each]), abs=1e-4)
        best = max(spelled.top_logprobs[i + 1].values())
        assert best == pytest.approx(float(scores[i].max()), abs=1e-4)
    silent = completion(door, prompt=prompt, echo=True, max_tokens=20)
    assert silent.choices[0].text == answer.choices[0].text


@pytest.mark.spec("H-17")
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_chat(door, stream):
    asked = {"logprobs": True, "top_logprobs": 4, "max_tokens": 12}
    if stream:
        said = [piece.choices[0].logprobs for piece in chat(door, stream=True, **asked)]
        content = [entry for each in said if each for entry in each.content]
    else:
        content = chat(door, **asked).choices[0].logprobs.content
    assert len(content) == 12
    for each in content:
        assert len(each.top_logprobs) == 4
        assert each.logprob == each.top_logprobs[0].logprob  # greedy
        assert sum(math.exp(other.logprob) for other in each.top_logprobs) <= 1
