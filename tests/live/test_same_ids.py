"""Whoever drafts, the ids are those of the verifier alone: real nodes, real sockets."""

from __future__ import annotations

import json

import pytest

from tests.cli.nodes import eventually, fleet_view, run_kakeya, running_node
from tests.live.client import hear
from tests.live.conftest import QUICK

LONG = "the cat sat on the mat and the dog sat on the log; " * 3  # 120 ids, the window keeps 34
# What a tool call looks like in a prompt, twice: there is something to copy.
TOOLS = '<tool_call>\n{"name": "f", "arguments": {"x": [1, 2]}}\n</tool_call>\n' * 2
PROMPTS = ["a", "ab", "abc", "hello, hello, hello", "안녕 👨‍👩‍👧‍👦 ď", LONG, TOOLS]


def three_ways(address: str, **request):
    plain = hear(address, plain=True, **request)
    local = hear(address, draft_on="local", num_drafts=4, **request)
    remote = hear(address, draft_on="cellar", num_drafts=4, **request)
    return plain, local, remote


@pytest.mark.parametrize("kv_mode", ["full", "window"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_remote_drafts_local_drafts_and_none_give_the_same_ids(pair, prompt, kv_mode):
    plain, local, remote = three_ways(
        pair.attic.grpc, text=prompt, raw=True, max_tokens=80, kv_mode=kv_mode
    )
    assert len(plain.ids) == 80
    assert local.ids == plain.ids
    assert remote.ids == plain.ids
    assert plain.text == local.text == remote.text
    assert plain.drafted_on == []
    assert set(local.drafted_on) == {"attic"}
    assert "cellar" in remote.drafted_on
    assert local.num_accepted > 0  # something was at stake
    assert remote.num_accepted > 0


def test_they_are_the_same_in_bfloat16(folder, tmp_path):
    args = ("--verifier", str(folder), "--dtype", "bfloat16", "--window", "32")
    with (
        running_node(tmp_path, *QUICK, *args, "--node-id", "attic") as attic,
        running_node(
            tmp_path, *QUICK, "--verifier", "none", "--node-id", "cellar", "--peer", attic.grpc
        ),
    ):
        eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))
        for kv_mode in ("full", "window"):
            for prompt in ("a", LONG):
                plain, local, remote = three_ways(
                    attic.grpc, text=prompt, raw=True, max_tokens=60, kv_mode=kv_mode
                )
                assert plain.ids == local.ids == remote.ids
                assert "cellar" in remote.drafted_on


def test_a_seed_gives_the_same_ids_whoever_drafts(pair):
    plain, local, remote = three_ways(
        pair.attic.grpc, text=LONG, raw=True, max_tokens=60, temperature=0.7, seed=11
    )
    assert plain.ids == local.ids == remote.ids


def test_a_stop_text_cuts_at_the_same_place_whoever_drafts(pair):
    whole = hear(pair.attic.grpc, text=LONG, raw=True, max_tokens=80, plain=True)
    at = len(whole.text) // 2
    stop = whole.text[at : at + 3]
    ways = three_ways(pair.attic.grpc, text=LONG, raw=True, max_tokens=80, stop=[stop])
    for heard in ways:
        assert heard.finish_reason == "stop"
        assert heard.text == whole.text[: whole.text.index(stop)]
        assert heard.ids == ways[0].ids


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 5, 6])
def test_never_more_than_max_tokens(pair, max_tokens):
    for heard in three_ways(pair.attic.grpc, text=LONG, raw=True, max_tokens=max_tokens):
        assert (len(heard.ids), heard.finish_reason) == (max_tokens, "length")


def command(pair, *args, stdin=None):
    return run_kakeya("generate", "--node", pair.attic.grpc, *args, home=pair.home, stdin=stdin)


def test_the_command_prints_the_documented_object(pair):
    done = command(
        pair, LONG, "--json", "--max-tokens", "40", "--draft-on", "cellar", "--num-drafts", "4"
    )
    assert done.returncode == 0, done.stderr
    (said,) = map(json.loads, done.stdout.splitlines())
    assert {
        "ids", "text", "finish_reason", "prompt_len", "blocks", "mean_acceptance_length",
        "timings", "fallbacks",
    } <= set(said)  # fmt: skip
    assert set(said["timings"]) == {"prefill_s", "decode_s", "tokens_per_second"}
    for block in said["blocks"]:
        assert set(block) == {"num_drafts", "num_accepted", "proposer", "drafted_on"}
    assert (len(said["ids"]), said["finish_reason"]) == (40, "length")
    assert said["prompt_len"] == len(LONG) - 3 * LONG.count(" the")  # " the" is one token
    assert sum(block["num_accepted"] for block in said["blocks"]) > 0
    assert ("ngram", "cellar") in {(b["proposer"], b["drafted_on"]) for b in said["blocks"]}
    assert said["ids"] == hear(pair.attic.grpc, text=LONG, max_tokens=40, plain=True).ids


def test_argument_file_and_stdin_give_one_text_and_a_prompt_file_gives_a_line_each(pair, tmp_path):
    asked = "안녕 👍 hello"
    (tmp_path / "one.txt").write_text(asked)
    (tmp_path / "many.jsonl").write_text("\n".join(json.dumps(p) for p in (asked, "b", "c")))
    length = ("--max-tokens", "24", "--plain")
    want = hear(pair.attic.grpc, text=asked, max_tokens=24, plain=True)
    for done in (
        command(pair, asked, *length),
        command(pair, *length, stdin=asked),
        command(pair, "--file", str(tmp_path / "one.txt"), *length),
    ):
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip("\n") == want.text.rstrip("\n")
    done = command(pair, "--prompt-file", str(tmp_path / "many.jsonl"), "--json", *length)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == 3
    assert (said[0]["ids"], said[0]["text"]) == (want.ids, want.text)


def test_no_tokens_asked_for_is_a_wrong_use(pair):
    done = command(pair, "a", "--max-tokens", "0")
    assert done.returncode == 2
    assert "--max-tokens is 0" in done.stderr
