"""The official openai client against a node."""

from __future__ import annotations

import openai
import pytest

MESSAGES = [{"role": "user", "content": "one two three, one two three, one"}]
GREEDY = {"temperature": 0, "max_tokens": 40}


def chat(door, **more):
    asked = {"model": door.model, "messages": MESSAGES, **GREEDY} | more
    return door.client.chat.completions.create(**asked)


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
