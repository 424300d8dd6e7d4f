"""Every flag of `run` and of `generate` has an effect that somebody sees."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.cli.generate_flags import GenerateFlags
from kakeya.config.settings import Settings
from kakeya.drafting.session_states import Seeded
from tests.cli.nodes import NodeProcess, eventually, fleet_view, run_here, run_kakeya, running_node
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_host import Caller, refused
from tests.live.checkpoint import write_folder
from tests.node.sessions import asking

PROMPT = "the cat sat on the mat and the dog sat on the log; " * 2

# Flag by flag, the test that sees its effect.
RUN_SEEN_BY = {
    "host": "test_host_and_insecure",
    "port": "test_port",
    "advertise": "test_names_on_the_card",
    "peer": "test_peer_interval_and_remote_drafting",
    "fleet_name": "test_names_on_the_card",
    "node_id": "test_names_on_the_card",
    "fleet_interval": "test_peer_interval_and_remote_drafting",
    "fleet_ttl": "test_names_on_the_card",
    "verifier": "test_verifier_and_dtype_on_the_card",
    "proposer": "test_a_model_that_this_build_lacks_is_refused",
    "backend": "test_the_backend_that_computed_is_told",
    "dtype": "test_verifier_and_dtype_on_the_card",
    "kv": "test_kv_sink_and_window",
    "sink": "test_kv_sink_and_window",
    "window": "test_kv_sink_and_window",
    "num_drafts": "test_the_nodes_own_num_drafts_draft_on_and_exact",
    "draft_on": "test_the_nodes_own_num_drafts_draft_on_and_exact",
    "exact": "test_the_nodes_own_num_drafts_draft_on_and_exact",
    "offline": "test_offline_needs_nothing_from_outside",
    "max_message_bytes": "test_limits_of_a_node",
    "max_sessions": "test_max_sessions_and_session_idle",
    "session_idle": "test_max_sessions_and_session_idle",
    "kept_prefixes": "test_kept_prefixes",
    "memory_limit": "test_memory_limit",
    "set_": "test_limits_of_a_node",
    "fleet_key_file": "test_fleet_key_file",
    "insecure": "test_host_and_insecure",
    "log_level": "test_log_level_and_format",
    "log_format": "test_log_level_and_format",
    "log_file": "test_log_file",
    "config": "test_config",
    # The HTTP door has tests of its own: tests/http/test_live.py.
    "http_host": "",
    "http_port": "",
    "http_key_file": "",
    "http_origin": "",
    # The certificates have tests of their own beside the command that issues them.
    "tls_cert": "",
    "tls_key": "",
    "tls_ca": "",
}
GENERATE_SEEN_BY = {
    "max_tokens": "test_max_tokens_and_stop",
    "stop": "test_max_tokens_and_stop",
    "raw": "test_raw",
    "plain": "test_plain_json_and_text",
    "json": "test_plain_json_and_text",
    "file": "test_where_prompts_come_from",
    "prompt_file": "test_where_prompts_come_from",
    "temperature": "test_sampling",
    "top_p": "test_sampling",
    "top_k": "test_sampling",
    "min_p": "test_sampling",
    "seed": "test_sampling",
    "repetition_penalty": "test_penalties_and_biases",
    "frequency_penalty": "test_penalties_and_biases",
    "presence_penalty": "test_penalties_and_biases",
    "logit_bias": "test_penalties_and_biases",
    "node": "test_node_and_embedded",
    "embedded": "test_node_and_embedded",
}
DRAFTERS = ("--verifier", "none")


@dataclass(frozen=True)
class Verifying:
    """A node with a small model, and what it says to a prompt."""

    node: NodeProcess
    home: Path

    def say(self, *args: str, prompt: str = PROMPT, max_tokens: int = 24) -> dict:
        count = ("--max-tokens", str(max_tokens))
        asked = ("generate", "--json", "--raw", *count, "--node", self.node.grpc)
        done = run_here(*asked, *args, prompt, home=self.home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refuses(self, *args: str, prompt: str = PROMPT) -> str:
        done = run_here("generate", "--node", self.node.grpc, *args, prompt, home=self.home)
        assert done.returncode != 0
        return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = write_folder(tmp_path_factory.mktemp("flags") / "tiny", seed=3)
    template = "<{{ messages[0].content }}>"
    (made / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": template})
    )
    return made


@pytest.fixture(scope="module")
def plain_node(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("plain")
    with running_node(home, "--verifier", str(folder), "--node-id", "attic") as node:
        yield Verifying(node, home)


def test_every_flag_has_a_test():
    assert set(RUN_SEEN_BY) == {each.name for each in fields(NodeFlags)}
    assert set(GENERATE_SEEN_BY) == {each.name for each in fields(GenerateFlags)}
    named = {*RUN_SEEN_BY.values(), *GENERATE_SEEN_BY.values()} - {""}
    assert named <= set(globals())


def test_port(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running_node(tmp_path, *DRAFTERS, "--port", str(port)) as node:
        assert node.grpc == f"127.0.0.1:{port}"


def test_host_and_insecure(tmp_path):
    with running_node(tmp_path, *DRAFTERS, "--host", "0.0.0.0", "--insecure") as node:
        assert node.grpc.startswith("0.0.0.0:")
    refused = run_here("run", *DRAFTERS, "--port", "0", "--host", "0.0.0.0", home=tmp_path)
    assert refused.returncode == 78


def test_names_on_the_card(tmp_path):
    named = ("--node-id", "porch", "--fleet-name", "b", "--advertise", "10.1.2.3:4567")
    with running_node(tmp_path, *DRAFTERS, *named, "--fleet-ttl", "77") as node:
        asked = ("fleet", "--json", "--node", node.grpc, "--fleet-name", "b")
        view = json.loads(run_here(*asked, home=tmp_path).stdout)
        assert (view["self"], view["fleet_name"]) == ("porch", "b")
        assert view["nodes"][0]["grpc_address"] == "10.1.2.3:4567"
        assert view["nodes"][0]["ttl_s"] == 77


def test_peer_interval_and_remote_drafting(plain_node, tmp_path):
    """A card heard again within seconds: by default it would take ten."""
    more = ("--fleet-interval", "0.3", "--peer", plain_node.node.grpc, "--node-id", "cellar")
    with running_node(tmp_path, *DRAFTERS, *more):

        def card() -> dict:
            return fleet_view(plain_node.node, tmp_path).get("cellar", {})

        eventually(lambda: card().get("models"))
        ages = [card()["age_s"] for _ in range(3)]
        assert max(ages) < 3
        remote = plain_node.say("--draft-on", "cellar", "--num-drafts", "3")
    on = {block["drafted_on"] for block in remote["blocks"] if block["num_drafts"]}
    assert "cellar" in on


def test_verifier_and_dtype_on_the_card(folder, tmp_path):
    args = ("--verifier", str(folder), "--dtype", "bfloat16", "--node-id", "attic")
    with running_node(tmp_path, *args) as node:

        def model() -> dict:
            models = fleet_view(node, tmp_path)["attic"]["models"]
            return next((m for m in models if m["role"] == "verifier"), {})

        assert eventually(model)["quantization"] == "bfloat16"
        assert model()["model_id"] == folder.name


@pytest.mark.spec("N-21")
def test_the_backend_that_computed_is_told(plain_node, folder, tmp_path):
    assert plain_node.say(max_tokens=2)["backend"] in ("torch", "mlx")
    own = ("generate", "--embedded", "--json", "--raw", "--max-tokens", "2")
    model = ("--verifier", str(folder))
    done = run_here(*own, *model, "--backend", "mlx", PROMPT, home=tmp_path)
    if find_spec("mlx"):
        assert json.loads(done.stdout)["backend"] == "mlx"
    else:
        assert (done.returncode, "backend mlx is not installed" in done.stderr) == (78, True)


@pytest.mark.parametrize("flag", ["--proposer", "--backend"])
def test_a_model_that_this_build_lacks_is_refused(flag, tmp_path):
    done = run_here("run", *DRAFTERS, "--port", "0", flag, "nonesuch", home=tmp_path)
    assert done.returncode in (69, 78)
    assert "nonesuch" in done.stderr


def test_kv_sink_and_window(folder, tmp_path, plain_node):
    full = plain_node.say()
    windows = ("--kv", "window", "--window", "16")
    said = []
    for sink in ("0", "8"):
        with running_node(tmp_path, "--verifier", str(folder), *windows, "--sink", sink) as node:
            there = Verifying(node, tmp_path)
            said.append(there.say()["ids"])
            assert there.say("--kv", "full")["ids"] == full["ids"]
    assert full["ids"] not in said
    assert said[0] != said[1]


def test_the_nodes_own_num_drafts_draft_on_and_exact(folder, tmp_path):
    args = ("--verifier", str(folder), "--num-drafts", "2", "--draft-on", "local")
    with running_node(tmp_path, *args, "--node-id", "attic", "--exact", "strict") as node:
        there = Verifying(node, tmp_path)
        own, asked = there.say(), there.say("--num-drafts", "4", "--exact", "guarded")
        assert "guarded, strict" in there.refuses("--exact", "nonsense")
    assert {block["num_drafts"] for block in own["blocks"]} <= {0, 1, 2}
    assert {block["drafted_on"] for block in own["blocks"]} <= {"attic", None}
    assert max(block["num_drafts"] for block in asked["blocks"]) > 2
    assert own["ids"] == asked["ids"]
    # strict makes every choice by a pass of its own: none is left to make again.
    assert own["margin_rechecks"] == 0


def test_offline_needs_nothing_from_outside(folder, tmp_path):
    with running_node(tmp_path, "--verifier", str(folder), "--offline") as node:
        assert Verifying(node, tmp_path).say()["ids"]
    shown = run_here("config", "show", "--offline", "--json", home=tmp_path).stdout
    assert {"key": "offline", "value": True, "origin": "flag"} in json.loads(shown)


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--max-message-bytes", "100", "100"),
        ("--set", "node.max_prompt_bytes=10", "the limit is 10"),
    ],
)
def test_limits_of_a_node(flag, value, why, folder, tmp_path):
    with running_node(tmp_path, "--verifier", str(folder), flag, value) as node:
        assert why in Verifying(node, tmp_path).refuses()


@pytest.mark.spec("N-23")
def test_memory_limit(folder, tmp_path):
    args = ("run", "--verifier", str(folder), "--port", "0", "--http-port", "off")
    done = run_here(*args, "--memory-limit", "3MiB", home=tmp_path)
    assert done.returncode == 78
    assert "memory_limit is 3.1 MB (3145728 bytes), needed are" in done.stderr


@pytest.mark.spec("D-36", "D-38")
def test_kept_prefixes(folder, plain_node, tmp_path):
    """A live node's second turn: less is read, the ids are those of a node that keeps nothing."""
    text = PROMPT + "; a prompt of its own"
    with running_node(tmp_path, "--verifier", str(folder), "--kept-prefixes", "0") as node:
        forgetful = Verifying(node, tmp_path)
        first = forgetful.say(prompt=text)
        turns = [text, text + first["text"] + " and then?"]
        without = [first, forgetful.say(prompt=turns[1])]
    kept = [plain_node.say(prompt=each) for each in turns]
    assert [each["ids"] for each in kept] == [each["ids"] for each in without]
    assert [each["cached_tokens"] for each in without] == [0, 0]
    assert kept[1]["cached_tokens"] == (kept[0]["prompt_len"] - 1) // 64 * 64 > 0


def test_max_sessions_and_session_idle(tmp_path):
    asked = ("config", "show", "--json", "--max-sessions", "1", "--session-idle", "5.5")
    rows = {row["key"]: row for row in json.loads(run_here(*asked, home=tmp_path).stdout)}
    shown = {key: row["value"] for key, row in rows.items() if row["origin"] == "flag"}
    assert shown == {
        "sessions.max_sessions": 1,
        "sessions.seeded_s": 5.5,
        "sessions.drafting_s": 5.5,
    }
    flags = NodeFlags(max_sessions=1, session_idle=5.5, verifier="none")
    clock = MockClock(autojump_threshold=0)
    trio.run(one_session_that_idles_out, load_settings(flags, {}).settings, clock=clock)


async def one_session_that_idles_out(settings: Settings) -> None:
    async with asking(settings, [NumpyDrafter()]) as (_, caller):
        await caller.at(Seeded)
        status, why = await refused(Caller(caller.stub, "other").restore())
        assert (status, "the limit for this node is 1" in why) == ("RESOURCE_EXHAUSTED", True)
        await trio.sleep(6)
        assert "idle 5.5 s in Seeded" in (await refused(caller.draft()))[1]


def test_fleet_key_file(tmp_path):
    key = tmp_path / "key"
    key.write_text("a-secret-of-sixteen-characters-or-more\n")
    key.chmod(0o600)
    with running_node(tmp_path, *DRAFTERS, "--fleet-key-file", str(key)) as node:
        asked = ("fleet", "--node", node.grpc)
        assert run_here(*asked, home=tmp_path).returncode != 0
        knows = run_here(*asked, "--fleet-key-file", str(key), home=tmp_path)
        assert knows.returncode == 0, knows.stderr


def test_log_level_and_format(tmp_path):
    def said(*args: str) -> list[str]:
        with running_node(tmp_path, *DRAFTERS, *args) as node:
            node.end()
            eventually(lambda: not node.reader.is_alive())
            return node.errors

    events = [json.loads(line) for line in said("--log-level", "debug", "--log-format", "json")]
    assert "debug" in {event["level"] for event in events}
    assert said("--log-level", "error") == []
    pretty = said("--log-level", "debug", "--log-format", "pretty")
    assert pretty
    assert not any(line.startswith("{") for line in pretty)


@pytest.mark.spec("N-06")
def test_log_file(tmp_path):
    """D10: none by default; one by flag, in place of stderr."""

    def files() -> set[str]:
        found = (each for each in tmp_path.rglob("*") if each.is_file())
        return {each.name for each in found if not each.is_relative_to(tmp_path / "state")}

    with running_node(tmp_path, *DRAFTERS, "--log-level", "debug") as node:
        node.end()
        eventually(lambda: not node.reader.is_alive())
        assert node.errors
        assert files() == set()
    kept = ("--log-level", "debug", "--log-file", str(tmp_path / "node.log"))
    with running_node(tmp_path, *DRAFTERS, *kept) as node:
        node.end()
        eventually(lambda: not node.reader.is_alive())
        assert node.errors == []
    assert files() == {"node.log"}
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert "debug" in {json.loads(line)["level"] for line in lines}
    nowhere = str(tmp_path / "nowhere" / "node.log")
    refused = run_here("run", *DRAFTERS, "--port", "0", "--log-file", nowhere, home=tmp_path)
    assert refused.returncode == 78
    assert nowhere in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("flag", ["--config", "-c"])
def test_config(flag, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('node_id = "porch"\nverifier = "none"\n')
    with running_node(tmp_path, flag, str(file)) as node:
        assert node.node_id == "porch"


def test_max_tokens_and_stop(plain_node):
    ten = plain_node.say(max_tokens=10)
    assert (len(ten["ids"]), ten["finish_reason"]) == (10, "length")
    text = plain_node.say()["text"]
    stop = text[6:9]
    cut = plain_node.say("--stop", stop)
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == text[: text.index(stop)]
    also = plain_node.say("--stop", "never said", "--stop", stop)
    assert also["text"] == cut["text"]


def test_raw(plain_node, tmp_path):
    asked = ("generate", "--json", "--max-tokens", "4", "--node", plain_node.node.grpc, "abc")
    chat = json.loads(run_here(*asked, home=tmp_path).stdout)
    raw = json.loads(run_here(*asked, "--raw", home=tmp_path).stdout)
    assert chat["prompt_len"] == raw["prompt_len"] + 2  # the template's two brackets


def test_plain_json_and_text(plain_node, tmp_path):
    drafted, plain = plain_node.say("--num-drafts", "4"), plain_node.say("--plain")
    assert any(block["num_drafts"] for block in drafted["blocks"])
    assert not any(block["num_drafts"] for block in plain["blocks"])
    assert plain["ids"] == drafted["ids"]
    asked = ("generate", "--raw", "--max-tokens", "24", "--node", plain_node.node.grpc, PROMPT)
    assert run_here(*asked, home=tmp_path).stdout == plain["text"] + "\n"


def test_where_prompts_come_from(plain_node, tmp_path):
    one, many = tmp_path / "one.txt", tmp_path / "many.jsonl"
    one.write_text(PROMPT)
    many.write_text(f'{json.dumps(PROMPT)}\n\n"a"\n')
    asked = ("generate", "--json", "--raw", "--max-tokens", "24", "--node", plain_node.node.grpc)

    def ids(*args: str, stdin: str | None = None) -> list[list[int]]:
        done = run_kakeya(*asked, *args, stdin=stdin, home=tmp_path)
        return [json.loads(line)["ids"] for line in done.stdout.splitlines()]

    first = ids(PROMPT)
    assert len(first) == 1
    assert ids("--file", str(one)) == ids(stdin=PROMPT) == ids("--", "-", stdin=PROMPT) == first
    assert ids("--prompt-file", str(many)) == [*first, *ids("a")]


def test_sampling(plain_node):
    greedy = plain_node.say()["ids"]
    hot = ("--temperature", "1.5")
    first = plain_node.say(*hot, "--seed", "1")["ids"]
    assert first != greedy
    assert plain_node.say(*hot, "--seed", "1")["ids"] == first
    assert plain_node.say(*hot, "--seed", "2")["ids"] != first
    for narrow in (("--top-k", "1"), ("--top-p", "0.000001"), ("--min-p", "1.0")):
        assert plain_node.say(*hot, "--seed", "1", *narrow)["ids"] == greedy


def test_penalties_and_biases(plain_node):
    """A25: applied as in plain decoding, whoever drafts, or refused; never ignored."""
    plain = plain_node.say()["ids"]
    said = {
        flag: plain_node.say(*flag)["ids"]
        for flag in (
            ("--repetition-penalty", "1.8"),
            ("--frequency-penalty", "1.5"),
            ("--presence-penalty", "-1.5"),
            ("--presence-penalty", "1.5"),
            ("--logit-bias", f"{plain[0]}=-100"),
        )
    }
    assert plain not in said.values()
    for flag, ids in said.items():
        assert plain_node.say(*flag, "--plain")["ids"] == ids
        assert plain_node.say(*flag, "--num-drafts", "4")["ids"] == ids
    assert plain[0] not in said["--logit-bias", f"{plain[0]}=-100"]
    forced = ("--logit-bias", "65=100", "--logit-bias", "66=-100")
    assert plain_node.say(*forced)["ids"] == [65] * 24
    for flag, value in (
        ("--repetition-penalty", "0"),
        ("--repetition-penalty", "101"),
        ("--frequency-penalty", "nan"),
        ("--presence-penalty", "101"),
        ("--logit-bias", "x=1"),
        ("--logit-bias", "65"),
        ("--logit-bias", "320=1"),
        ("--logit-bias", "65=101"),
    ):
        why = plain_node.refuses(flag, value)
        assert value.split("=")[0] in why or value.split("=")[-1] in why
        assert len(why.strip().splitlines()) == 1


def test_node_and_embedded(plain_node, folder, tmp_path):
    """A node of its own, with a model of its own, though one runs on the port it would ask."""
    port = plain_node.node.grpc.rpartition(":")[2]
    asked = ("generate", "--json", "--raw", "--max-tokens", "8", "--port", port)
    there = json.loads(run_here(*asked, PROMPT, home=tmp_path).stdout)
    other = write_folder(tmp_path / "other", seed=4)
    more = ("--embedded", "--verifier", str(other))
    here = json.loads(run_here(*asked, *more, PROMPT, home=tmp_path).stdout)
    assert (there["model_id"], here["model_id"]) == (folder.name, "other")
    named = run_here(
        "generate", "--json", "--raw", "--max-tokens", "8", "--node", plain_node.node.grpc, PROMPT,
        home=tmp_path,
    )  # fmt: skip
    assert json.loads(named.stdout)["ids"] == there["ids"]
