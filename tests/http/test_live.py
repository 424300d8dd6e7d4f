"""A node's door over real sockets: where it binds, what it does while the verifier is busy."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

from tests.cli.nodes import eventually, fleet_view, run_here, run_kakeya, running_node
from tests.http.conftest import CONFIG, client_of
from tests.http.test_metrics import read
from tests.live.checkpoint import write_folder

DRAFTERS = ("--verifier", "none")
KEY = "a-key-of-sixteen-or-more"


def get(base: str, path: str, **fields: str) -> tuple[int, bytes]:
    request = urllib.request.Request(base + path, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def generations(base: str, key: str = "") -> dict[str, int]:
    fields = {"Authorization": f"Bearer {key}"} if key else {}
    return json.loads(get(base, "/fleet.json", **fields)[1])["generations"]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A node whose prefill of a long prompt takes seconds, decoding one generation at a time."""
    home = tmp_path_factory.mktemp("slow")
    folder = write_folder(home / "slow", seed=4, hidden_size=256, num_layers=10)
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    one = ("--set", "node.max_generations=1")
    with running_node(home, "--verifier", str(folder), *one) as node, client_of(node) as client:
        client.completions.create(model="slow", prompt="a", max_tokens=1)
        yield node, client


def test_the_port_is_on_the_ready_line_and_speaks_http(door):
    assert get(door.base, "/health") == (200, b'{"status":"ok"}')
    status, page = get(door.base, "/metrics")
    assert status == 200
    found = read(page)
    assert found["gossip_rounds_total", "ok"] == 0
    assert found["cards_rejected_total", "future"] == 0
    assert found["peers", "reachable"] == 0
    assert found["requests_running", ""] == 0


@pytest.mark.spec("H-19")
def test_the_fleet_of_the_page_is_that_of_the_command(door):
    def ours() -> dict:
        [row] = json.loads(get(door.base, "/fleet.json")[1])["nodes"]
        return row

    eventually(lambda: len(ours()["models"]) == 2)  # the verifier is loaded
    mine = ours()
    theirs = fleet_view(door.node, door.home)["attic"]
    assert set(mine) == set(theirs)
    still = set(mine) - {"age_s", "models"}
    assert {key: mine[key] for key in still} == {key: theirs[key] for key in still}
    assert [model["role"] for model in mine["models"]] == ["proposer", "verifier"]


@pytest.mark.spec("H-02")
def test_a_port_in_use_is_one_line_and_status_1(door, tmp_path):
    port = door.node.http.rpartition(":")[2]
    done = run_kakeya("run", *DRAFTERS, "--port", "0", "--http-port", port, home=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"port {port} on 127.0.0.1 is in use, choose another with --http-port" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.spec("H-02")
def test_beyond_loopback_it_needs_a_key_or_insecure(tmp_path):
    wide = ("--http-host", "0.0.0.0")
    done = run_here("run", *DRAFTERS, "--port", "0", *wide, home=tmp_path)
    assert done.returncode == 78
    assert "0.0.0.0" in done.stderr
    assert "--http-key-file" in done.stderr
    key = tmp_path / "key"
    key.write_text(KEY)
    for safe in (("--http-key-file", str(key)), ("--insecure",)):
        with running_node(tmp_path, *DRAFTERS, *wide, *safe) as node:
            assert node.http.startswith("0.0.0.0:")


@pytest.mark.spec("H-02")
def test_without_a_host_of_its_own_it_follows_host_only_where_that_is_safe(tmp_path):
    fleet_key, key = tmp_path / "fleet", tmp_path / "key"
    for file in (fleet_key, key):
        file.write_text(KEY)
    wide = ("--host", "0.0.0.0", "--fleet-key-file", str(fleet_key))
    with running_node(tmp_path, *DRAFTERS, *wide) as node:
        assert node.http.startswith("127.0.0.1:")
    with running_node(tmp_path, *DRAFTERS, *wide, "--http-key-file", str(key)) as node:
        assert node.http.startswith("0.0.0.0:")
    with running_node(tmp_path, *DRAFTERS, "--http-port", "off") as node:
        assert node.http == "-"


@pytest.mark.spec("H-03", "H-04")
def test_a_key_and_an_origin_by_flag(tmp_path):
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    web = ("--http-origin", "https://chat.example")
    with running_node(tmp_path, *DRAFTERS, "--http-key-file", str(key), *web) as node:
        base = f"http://{node.http}"
        assert get(base, "/v1/models")[0] == 401
        assert get(base, "/v1/models", Authorization=f"Bearer {KEY}")[0] == 200
        assert get(base, "/health")[0] == 200
        with client_of(node, api_key=KEY) as client:
            assert list(client.models.list()) == []
        with (
            client_of(node, api_key="another") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        page = urllib.request.Request(base + "/v1/models", method="OPTIONS")
        page.add_header("Origin", "https://chat.example")
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        node.end()
        eventually(lambda: not node.reader.is_alive())
        assert not any(KEY in line for line in node.errors)


@pytest.mark.spec("H-14")
def test_health_answers_at_once_during_a_long_prefill(slow):
    node, client = slow
    prompt = "one two three, " * 500  # 7,500 ids: seconds of prefill
    asking = threading.Thread(
        target=lambda: client.completions.create(model="slow", prompt=prompt, max_tokens=1)
    )
    asking.start()
    waits_s = []
    while asking.is_alive():
        started_s = time.monotonic()
        assert get(f"http://{node.http}", "/health")[0] == 200
        waits_s.append(time.monotonic() - started_s)
        time.sleep(0.02)
    asking.join()
    assert len(waits_s) > 10, "the prefill was over too soon to show anything"
    # The median: another process may hold the core for a while.
    assert sorted(waits_s)[len(waits_s) // 2] < 0.05


@pytest.mark.spec("H-10")
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_is_killed_makes_room_at_once(slow, is_stream):
    node, client = slow
    host, _, port = node.http.rpartition(":")
    body = json.dumps({"prompt": "one two", "max_tokens": 7000, "stream": is_stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(head.encode() + body)
        eventually(lambda: generations(f"http://{node.http}")["running"] == 1)
    started_s = time.monotonic()
    client.completions.create(model="slow", prompt="a", max_tokens=2)
    assert time.monotonic() - started_s < 5


@pytest.mark.spec("H-11", "N-02")
def test_sigterm_lets_a_stream_end(tiny, tmp_path):
    with running_node(tmp_path, "--verifier", str(tiny)) as node, client_of(node) as client:
        asked = {"model": "tiny", "prompt": "one two three", "temperature": 0, "max_tokens": 400}
        want = client.completions.create(**asked).choices[0].text
        stream = client.completions.create(stream=True, **asked)
        said = [next(stream).choices[0].text]
        assert node.end(signal.SIGTERM) == 0
        said += [piece.choices[0].text for piece in stream]
        assert "".join(said) == want


@pytest.mark.parametrize("prompt", ["한국어로 말해", "ď ď ď", "👨‍👩‍👧‍👦 family", "a\x00b"])
def test_streamed_characters_are_whole_and_the_same(door, prompt):
    """A31: pieces joined equal the whole text, wherever max_tokens cuts a character."""
    for seed in range(6):
        asked = {"model": door.model, "prompt": prompt, "temperature": 1.6, "seed": seed}
        for count in (7, 8, 30):
            whole = door.client.completions.create(max_tokens=count, **asked).choices[0].text
            stream = door.client.completions.create(max_tokens=count, stream=True, **asked)
            pieces = [piece.choices[0].text for piece in stream]
            assert "".join(pieces) == whole
            assert not any(0xD800 <= ord(char) < 0xE000 for char in whole)


def test_the_same_seed_gives_the_same_text_whoever_drafts(door):
    asked = {"model": door.model, "prompt": "one two three, one two three, one", "max_tokens": 60}
    for temperature in (0.0, 0.7):
        for more in ({}, {"presence_penalty": 0.8, "frequency_penalty": 0.3}):
            said = door.client.completions.create(temperature=temperature, seed=3, **asked, **more)
            body = {"temperature": temperature, "seed": 3, **asked, **more}
            again = door.client.completions.create(**body)
            assert again.choices[0].text == said.choices[0].text
    plain = run_here(
        "generate", "--raw", "--plain", "--max-tokens", "60", "--node", door.node.grpc,
        asked["prompt"], home=door.home,
    )  # fmt: skip
    said = door.client.completions.create(temperature=0, **asked)
    assert plain.stdout.rstrip("\n") == said.choices[0].text.rstrip("\n")


def test_two_requests_at_once_are_each_as_alone(door):
    asked = [{"prompt": text, "max_tokens": 80} for text in ("one two three, one", "aa bb aa bb")]
    common = {"model": door.model, "temperature": 0}
    alone = [door.client.completions.create(**common, **each).choices[0].text for each in asked]
    both: dict[int, str] = {}

    def ask(number: int) -> None:
        mine = asked[number % 2]
        both[number] = door.client.completions.create(**common, **mine).choices[0].text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [both[number] for number in range(4)] == alone * 2


def test_one_line_of_the_log_sums_up_a_request(tiny, tmp_path):
    logs = ("--log-format", "json", "--log-level", "info")
    with running_node(tmp_path, "--verifier", str(tiny), *logs) as node, client_of(node) as client:
        secret = "one two three, one two three, one"
        answer = client.completions.create(
            model="tiny", prompt=secret, max_tokens=40, temperature=0,
            extra_headers={"x-request-id": "mine-7"},
        )  # fmt: skip
        node.end()
        eventually(lambda: not node.reader.is_alive())
        lines = [json.loads(line) for line in node.errors]
        [summary] = [line for line in lines if line["event"] == "a generation ended"]
        assert summary["request_id"] == "mine-7"
        assert summary["outcome"] == "length"
        assert (summary["prompt_len"], summary["num_ids"]) == (len(secret), 40)
        assert summary["num_accepted"] == answer.timings["draft_n_accepted"]
        assert summary["mean_acceptance_length"] >= 1
        everything = "".join(node.errors)
        assert "one two" not in everything
        assert answer.choices[0].text not in everything


def test_no_room_for_kv_is_503_with_retry_after(tiny, tmp_path):
    """D12: one whole context fits, and not a second generation beside it."""
    limit = ("--memory-limit", "20MB")
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 8000}
    with (
        running_node(tmp_path, "--verifier", str(tiny), *limit) as node,
        client_of(node) as client,
        client.completions.create(stream=True, **asked) as first,
    ):
        next(iter(first))
        with pytest.raises(openai.InternalServerError) as error:
            client.completions.create(**asked)
        assert error.value.status_code == 503
        assert int(error.value.response.headers["retry-after"]) > 0
        assert "the K/V takes" in error.value.body["message"]


def test_two_hundred_requests_with_twenty_that_leave_hold_nothing(door):
    """D1, D7: a pool of connections, and the K/V of every generation given back."""

    def resident() -> int:
        status = f"/proc/{door.node.process.pid}/status"
        with open(status) as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def rounds(count: int) -> None:
        for number in range(count):
            stream = door.client.completions.create(
                model=door.model, prompt="one two three" * 5, max_tokens=12, stream=True
            )
            if number % 10 == 0:
                next(stream)
                stream.close()
            else:
                assert list(stream)

    rounds(40)
    before = resident()
    rounds(200)
    assert resident() < 1.05 * before + 4096  # KiB: an allocator's arena
    assert generations(door.base) == {"running": 0, "waiting": 0}
