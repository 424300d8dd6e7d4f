"""What people typed at such doors, typed at ours by curl itself: F1 to F8."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.nodes import running_node

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="there is no curl in PATH")
WEB = "https://chat.example"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "one two three, one two"}]
CONTEXT_LEN = 8192


@dataclass(frozen=True)
class Answer:
    status: int
    fields: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[str]:
        return [each[6:] for each in self.body.split("\n\n") if each.startswith("data: ")]


@pytest.fixture(scope="module")
def base(tiny, tmp_path_factory):
    home = tmp_path_factory.mktemp("curled")
    with running_node(home, "--verifier", str(tiny), "--http-origin", WEB) as node:
        yield f"http://{node.http}"


def curl(url: str, *args: str) -> Answer:
    command = [CURL, "--silent", "--show-error", "--include", "--max-time", "60", *args, url]
    done = subprocess.run(command, capture_output=True, timeout=90, check=True)
    head, _, body = done.stdout.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), fields, body)


def post(base: str, path: str, **body: Any) -> Answer:
    asked = {"max_tokens": 6, "temperature": 0} | body
    given = {key: value for key, value in asked.items() if value is not None}
    as_json = ("--header", "Content-Type: application/json", "--data", json.dumps(given))
    return curl(base + path, *as_json)


def refused(answer: Answer, param: str) -> bool:
    return (answer.status, answer.error["param"]) == (400, param)


def num_said(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return answer.json["usage"]["completion_tokens"]


@pytest.mark.spec("H-09")
@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": USER}), (TEXT, {"prompt": "a"})])
def test_f1_usage_is_the_last_piece_before_done(base, path, asked):
    options = {"stream_options": {"include_usage": True}}
    *pieces, usage, done = post(base, path, stream=True, **options, **asked).events
    assert done == "[DONE]"
    last = json.loads(usage)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
    assert all(json.loads(each)["usage"] is None for each in pieces)
    *pieces, done = post(base, path, stream=True, **asked).events
    assert all("usage" not in json.loads(each) and json.loads(each)["choices"] for each in pieces)
    for stream in (False, None):
        assert refused(post(base, path, stream=stream, **options, **asked), "stream_options")


@pytest.mark.spec("H-13")
@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": USER}), (TEXT, {"prompt": "a"})])
def test_f2_max_completion_tokens_is_max_tokens(base, path, asked):
    newer = post(base, path, max_tokens=None, max_completion_tokens=5, **asked)
    assert num_said(newer) == num_said(post(base, path, max_tokens=5, **asked)) == 5
    both = post(base, path, max_tokens=5, max_completion_tokens=4, **asked)
    assert refused(both, "max_completion_tokens")


@pytest.mark.spec("H-04")
def test_f4_a_preflight_with_authorization_is_for_configured_origins(base):
    asked = (
        "--request", "OPTIONS",
        "--header", "Access-Control-Request-Method: GET",
        "--header", "Access-Control-Request-Headers: authorization",
        "--header",
    )  # fmt: skip
    yes = curl(base + "/v1/models", *asked, f"Origin: {WEB}")
    assert (yes.status, yes.body) == (204, "")
    assert yes.fields["access-control-allow-origin"] == WEB
    assert "authorization" in yes.fields["access-control-allow-headers"]
    assert "get" in yes.fields["access-control-allow-methods"]
    no = curl(base + "/v1/models", *asked, "Origin: https://other.example")
    assert no.status == 204
    assert not any(name.startswith("access-control") for name in no.fields)


@pytest.mark.spec("H-08")
def test_f6_completions_take_lists_ids_and_echo_and_refuse_a_suffix(base):
    text = "one two"
    alone = post(base, TEXT, prompt=text).json["choices"][0]["text"]
    echoed = post(base, TEXT, prompt=text, echo=True, logprobs=0).json["choices"][0]
    assert echoed["text"] == text + alone
    assert len(echoed["logprobs"]["token_logprobs"]) == len(text) + 6
    ids = list(text.encode())
    for prompt, count in ((ids, 1), ([text], 1), ([ids, ids], 2), ([text, text, text], 3)):
        choices = post(base, TEXT, prompt=prompt).json["choices"]
        assert [each["text"] for each in choices] == [alone] * count
    assert refused(post(base, TEXT, prompt=text, suffix="x"), "suffix")
    assert refused(post(base, TEXT, prompt={"text": text}), "prompt")


@pytest.mark.spec("H-13")
def test_f7_what_cannot_fit_is_refused_and_absent_fills_the_context(base):
    prompt = "a" * (CONTEXT_LEN - 40)
    for too_many in (CONTEXT_LEN, 41):
        answer = post(base, TEXT, prompt=prompt, max_tokens=too_many)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert str(CONTEXT_LEN) in answer.error["message"]
    assert refused(post(base, TEXT, prompt=prompt, max_tokens=-1), "max_tokens")
    full = post(base, TEXT, prompt=prompt, max_tokens=None)
    assert num_said(full) == 40
    assert full.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.spec("H-06", "H-16")
def test_f8_what_is_not_built_is_named_and_a_seed_is_taken(base):
    for name, value in (("n", 2), ("best_of", 3), ("response_format", {"type": "json_object"})):
        for path, asked in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "a"})):
            answer = post(base, path, **asked, **{name: value})
            assert refused(answer, name)
            assert name in answer.error["message"]
    forced = post(base, TEXT, prompt="a", logit_bias={"66": 100})
    assert forced.json["choices"][0]["text"] == "B" * 6
    seeded = [post(base, TEXT, prompt="a", seed=seed).json["choices"] for seed in (1, 2)]
    assert seeded[0] == seeded[1]


@pytest.mark.spec("H-05")
def test_what_is_no_request_at_all_gets_an_error_of_the_same_form(base):
    asked = (
        (TEXT, ("--data", "{no json"), 400),
        (TEXT, ("--data", "[1]"), 400),
        ("/v2/completions", (), 404),
        (TEXT, (), 405),
        ("/v1/models/gpt-4", (), 404),
    )
    for path, args, status in asked:
        answer = curl(base + path, *args)
        assert answer.status == status, path
        assert set(answer.error) == {"message", "type", "param", "code"}
        assert answer.fields["x-request-id"]
