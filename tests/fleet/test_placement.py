"""Who is asked for drafts, and how it is explained."""

from __future__ import annotations

import math
import random

import pytest

from kakeya.fleet.card import ROLE_PROPOSER, ROLE_VERIFIER
from kakeya.fleet.placement import NobodyQualifies, accepts_all, plan
from tests.fleet.cards import NGRAM, NOW, SMOLLM2, card


def drafter(node_id, speed=0.0, memory_gib=16, model="ngram", **more):
    return card(
        node_id,
        models=[{"model_id": model, "role": 2, "tokens_per_second": speed}],
        unified_memory_bytes=memory_gib << 30,
        **more,
    )


def placed(cards, model_id="ngram", *, role=ROLE_PROPOSER, me="me", accepts=accepts_all, down=()):
    return plan(
        cards,
        role=role,
        model_id=model_id,
        self_node_id=me,
        unreachable=set(down),
        now_unix=NOW,
        accepts=accepts,
    )


def ids(cards, *args, **more) -> list[str]:
    return [choice.node_id for choice in placed(cards, *args, **more).choices]


def test_faster_goes_first_then_larger_memory_then_name():
    cards = [
        drafter("a", 10),
        drafter("b", 20, 8),
        drafter("c", 20, 32),
        drafter("e", 20, 8),
        drafter("d"),
    ]
    assert ids(cards) == ["c", "b", "e", "a", "d"]


@pytest.mark.parametrize("speed", [math.nan, math.inf, -math.inf, -5.0])
def test_a_speed_that_is_no_measure_counts_as_unmeasured(speed):
    assert ids([drafter("a", speed), drafter("b", 1.0)]) == ["b", "a"]


def test_other_nodes_go_before_this_one_however_fast_it_is():
    assert ids([drafter("me", 1000, 512), drafter("slow")]) == ["slow", "me"]
    assert ids([drafter("me", 1000)]) == ["me"]


def test_every_node_with_the_same_view_makes_the_same_plan():
    cards = [drafter(f"n{n}", n % 3, n % 5) for n in range(12)]
    shuffled = cards[:]
    random.Random(4).shuffle(shuffled)
    assert placed(cards) == placed(shuffled)


def test_only_live_nodes_of_the_role_and_model_qualify():
    cards = [
        drafter("other", model="dflash"),
        card("verifier", models=[SMOLLM2]),
        drafter("over", stamp=NOW - 121),
        drafter("good"),
    ]
    assert ids(cards) == ["good"]
    assert ids(cards, "") == ["good", "other"]
    assert ids(cards, "", role=ROLE_VERIFIER) == ["verifier"]


def test_drafts_that_do_not_fit_the_verifier_are_passed_over():
    cards = [drafter("a", 9, model="dflash-gemma"), drafter("b", 1, model="dflash-qwen")]
    assert ids(cards, "", accepts=lambda model: "qwen" in model.model_id) == ["b"]


@pytest.mark.spec("F-11")
def test_a_node_that_does_not_answer_from_here_is_passed_over_and_shown():
    found = placed([drafter("a", 9), drafter("b", 1)], down=["a"])
    assert [choice.node_id for choice in found.choices] == ["b"]
    assert found.lines[1] == ("a: offers ngram at 10.0.0.2:50051; seen, not reachable from here")


def test_the_plan_explains_every_node_in_a_line():
    found = placed([drafter("a", 12.34), drafter("me"), card("v", models=[SMOLLM2])])
    assert found.lines == (
        "1. a at 10.0.0.2:50051: ngram, 12.3 tokens/s, 16.0 GiB",
        "2. me at 10.0.0.2:50051: ngram, unmeasured, 16.0 GiB; this node itself, "
        "only when no other can",
        "v: offers no proposer",
    )


@pytest.mark.parametrize(
    ("cards", "down", "why"),
    [
        ([], (), "no node is known, so none offers proposer x"),
        ([card("v", models=[SMOLLM2])], (), "none offers any proposer"),
        ([card("v", models=[NGRAM])], (), "1 nodes offers a usable proposer x; offered: ngram"),
        ([drafter("a", model="x")], ("a",), "1 of 1 nodes offer proposer x, none can be reached"),
    ],
)
def test_when_nobody_qualifies_the_error_names_what_was_missing(cards, down, why):
    with pytest.raises(NobodyQualifies, match=why) as raised:
        placed(cards, "x", down=down)
    assert raised.value.status == "NOT_FOUND"
    assert len(raised.value.lines) == len(cards)


def test_an_unknown_role_can_be_planned_for():
    cards = [card("a", models=[{"model_id": "m", "role": 99}])]
    assert ids(cards, "m", role=99) == ["a"]
    with pytest.raises(NobodyQualifies, match="role 98"):
        placed(cards, "m", role=98)
