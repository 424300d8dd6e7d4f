"""`kakeya bench` compares, and says what it found; its figures are not judged here."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from kakeya.cli.bench_flags import seconds_of
from kakeya.cli.bench_ground import ways_of_pair
from kakeya.cli.bench_nodes import NodePair, NodeProcess, arguments_of, of_verifier
from kakeya.cli.bench_rows import joined
from kakeya.cli.delayed import DelayingDialer, relay
from kakeya.cli.flags import NodeFlags
from kakeya.config.rpc import RpcLimits
from kakeya.errors import Refused
from kakeya.rpc.channel import TcpDialer
from tests.cli.nodes import eventually, fleet_view, run_here, run_kakeya, running_node
from tests.live.checkpoint import write_folder

# A busy host is late with its drafts; nothing here is about waiting.
PATIENT = ("--set", "decoding.min_draft_wait_s=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("bench") / "tiny", seed=3)


def test_each_kind_of_prompt_is_measured_here_and_on_the_fleet(folder, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text('"one two one two one two"\n"a"\n')
    with (
        running_node(tmp_path, "--verifier", str(folder), "--node-id", "attic") as attic,
        running_node(
            tmp_path, "--verifier", "none", "--peer", attic.grpc, "--node-id", "cellar",
            "--fleet-interval", "0.5",
        ),
    ):  # fmt: skip
        eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))
        asked = ("bench", "--json", "--node", attic.grpc, "--max-tokens", "12", "--rounds", "2")
        given = ("--prompt-file", str(prompts), "--num-drafts", "3")
        both = json.loads(run_here(*asked, *given, home=tmp_path).stdout)["runs"]
        assert [(r["kind"], r["draft_on"]) for r in both] == [
            ("given", "local"), ("given", "remote"),
        ]  # fmt: skip
        for row in both:
            assert row["ids_equal"] is True
            assert row["prompts"] == 4
            assert row["proposer"] == "ngram"
            assert row["ratio"] > 0
            assert 1 <= row["mean_acceptance_length"] <= 4
            assert len(row["acceptance_by_position"]) == 3
        assert both[0]["drafted_on"] == ["attic"]
        assert "cellar" in both[1]["drafted_on"]
        one = run_here(*asked, *given, "--draft-on", "local", "--kv", "window", home=tmp_path)
        assert [r["draft_on"] for r in json.loads(one.stdout)["runs"]] == ["local"]


def test_each_proposer_named_has_a_row_of_its_own(tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text('"def read(self, path):"\n')
    args = ("--embedded", "--verifier", "tiny", "--proposer", "ngram", "--proposer", "tiny-dlm")
    given = ("--prompt-file", str(prompts), "--max-tokens", "24", "--rounds", "1")
    given = (*given, "--num-drafts", "3", *PATIENT)
    done = run_kakeya("bench", "--json", *args, *given, home=tmp_path)
    rows = json.loads(done.stdout)["runs"]
    assert [row["asked"] for row in rows] == ["ngram", "tiny-dlm"]
    assert all(row["ids_equal"] for row in rows)
    assert "tiny-dlm" in rows[1]["proposer"]


@pytest.mark.spec("N-17")
def test_a_pair_of_processes_is_measured_beside_the_same_drafter_in_process(tmp_path):
    given = ("--held-out", "1", "--max-tokens", "12", "--rounds", "1", "--num-drafts", "7")
    pair = ("--verifier", "tiny", "--proposer", "tiny", *PATIENT)
    done = run_here("bench", "--json", *pair, *given, home=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["runs"]
    assert [row["way"] for row in rows] == [
        "plain", "ngram", "tiny remote", "tiny in process", "as the node does",
    ]  # fmt: skip
    assert {row["kind"] for row in rows} == {"held-out code"}
    for row in rows:
        assert row["num_equal"] == row["prompts"] == 1
        assert row["tokens_per_round"] >= 1
    plain, _, remote, here, _ = rows
    assert (plain["ratio"], plain["proposer"]) == (1.0, None)
    # Nothing is measured before each of the two has drafted; a short text may end before it does.
    assert set(here["drafted_on"]) <= {"bench-verifier"}
    assert set(remote["drafted_on"]) <= {"bench-verifier", "bench-drafter"}


def test_a_nodes_flags_are_those_of_the_command_but_for_what_it_has_for_itself():
    given = NodeFlags(
        port=7, node_id="porch", dtype="bfloat16", proposer=("tiny",), offline=True,
        set_=("decoding.num_steps=3", "node.load_s=9"), draft_on="local",
    )  # fmt: skip
    assert arguments_of(given) == [
        "--host", "127.0.0.1", "--port", "0", "--http-port", "off", "--fleet-interval", "1",
        "--dtype=bfloat16", "--offline", "--set=decoding.num_steps=3", "--set=node.load_s=9",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["ngram", "tiny", "tiny-dlm", "smollm2", "drafter@elsewhere"])
def test_a_proposer_that_needs_no_verifier_named_keeps_its_name(name):
    assert of_verifier(name, "attic") == name


def test_a_drafters_folder_names_its_verifier_to_a_node_that_has_none(tmp_path):
    assert of_verifier(f"{tmp_path}", "tiny") == f"{tmp_path}@tiny"


def test_where_proposers_draft_can_be_said():
    attic, cellar = (NodeProcess(name, "127.0.0.1:1", 1) for name in ("attic", "cellar"))
    pair = NodePair(attic, cellar, ("tiny",))
    ways = [ways_of_pair(pair, where, is_far=False) for where in ("local", "remote")]
    names = [[way.name for way in each] for each in ways]
    assert names == [["plain", "ngram", "tiny in process"], ["plain", "ngram", "tiny remote"]]


@pytest.mark.parametrize("count", ["0", "100000"])
def test_held_out_prompts_are_refused_by_their_number(count, tmp_path):
    done = run_here("bench", "--held-out", count, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{count} held-out prompts" in done.stderr


def test_verify_prints_a_table_over_the_built_in_prompts(folder, tmp_path):
    done = run_kakeya(
        "bench", "--embedded", "--verifier", str(folder), "--verify", "--busy", "--max-tokens", "4",
        home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines if line.strip()] == ["chat", "edit", "quote", "code"]
    assert "DIFFERENT" not in done.stdout


def test_a_bench_of_no_rounds_is_refused(tmp_path):
    done = run_here("bench", "--rounds", "0", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--rounds is 0" in done.stderr


@pytest.mark.parametrize(("name", "says"), [("rpc", "--engines"), ("never-slower", "--peers")])
def test_a_checkouts_own_benchmarks_are_found(name, says, tmp_path):
    done = run_kakeya("bench", name, "--", "--help", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_a_benchmark_of_another_name_is_refused(tmp_path):
    done = run_here("bench", "faster", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no benchmark 'faster'; there is rpc, never-slower" in done.stderr


def test_several_at_once_give_the_same_ids_and_their_speeds_in_all(folder, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text('"one two one two one two"\n')
    asked = ("bench", "--json", "--embedded", "--verifier", str(folder), "--max-tokens", "12")
    given = ("--prompt-file", str(prompts), "--rounds", "1", "--concurrency", "3")
    done = run_here(*asked, *given, home=tmp_path)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["runs"]
    assert row["ids_equal"] is True
    assert row["tokens_per_second"] > 0


def test_reports_of_generations_at_once_are_joined():
    one = {"ids": [1, 2], "blocks": [{"num_drafts": 1}], "timings": {"tokens_per_second": 9.0}}
    both = joined([one, one], elapsed_s=2.0)
    assert both["ids"] == [1, 2, 1, 2]
    assert len(both["blocks"]) == 2
    assert both["timings"]["tokens_per_second"] == 2.0


@pytest.mark.spec("N-17")
def test_a_round_trip_can_be_put_between_the_two_processes(folder, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text('"one two one two one two"\n')
    asked = ("bench", "--json", "--verifier", str(folder), "--max-tokens", "12", "--rounds", "1")
    given = ("--prompt-file", str(prompts), "--rtt", "30ms", "--num-drafts", "3")
    done = run_here(*asked, *given, home=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["runs"]
    assert [row["way"] for row in rows] == ["plain", "ngram", "ngram remote"]
    assert all(row["ids_equal"] for row in rows)


async def test_a_relay_carries_both_ways_and_ends_with_either_side():
    near_listener = trio.testing.open_stream_to_socket_listener
    async with trio.open_nursery() as nursery:
        there = await trio.open_tcp_listeners(0, host="127.0.0.1")
        here = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def echo(stream: trio.SocketStream) -> None:
            await stream.send_all(b"you said " + await stream.receive_some())
            await stream.aclose()

        nursery.start_soon(trio.serve_listeners, echo, there)
        address = f"127.0.0.1:{there[0].socket.getsockname()[1]}"
        nursery.start_soon(relay, here, TcpDialer(RpcLimits()), address)
        asking = await near_listener(here[0])
        await asking.send_all(b"hello")
        heard = b""
        while more := await asking.receive_some():
            heard += more
        assert heard == b"you said hello"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("text", "seconds"), [("50ms", 0.05), ("0.2s", 0.2), ("1", 1.0)])
def test_a_round_trip_is_written_with_its_unit(text, seconds):
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["fast", "-1ms", "0", "11s", "nan"])
def test_a_round_trip_that_is_none_is_refused(text):
    with pytest.raises(Refused, match="--rtt is"):
        seconds_of(text)


async def test_bytes_of_a_far_stream_arrive_half_a_round_trip_later(autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()

    class Near:
        async def open(self, address: str) -> trio.abc.Stream:
            return ours

    async with trio.open_nursery() as nursery:
        stream = await DelayingDialer(Near(), 0.1, nursery).open("there:1")
        for part in (b"a", b"b", b"c"):
            await stream.send_all(part)  # all at once: they overlap on their way
        got = b""
        while len(got) < 3:
            got += await theirs.receive_some(10)
        assert (got, trio.current_time()) == (b"abc", pytest.approx(0.05))
        await theirs.send_all(b"answer")
        assert await stream.receive_some(3) == b"ans"
        assert await stream.receive_some() == b"wer"
        assert trio.current_time() == pytest.approx(0.1)
        await theirs.aclose()
        assert await stream.receive_some() == b""
        await stream.aclose()
