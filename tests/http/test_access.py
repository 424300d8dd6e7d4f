"""Keys, origins, names, and the answers that are no generation."""

from __future__ import annotations

import pytest

from kakeya.http.access import Access
from kakeya.http.routes import routes_of
from tests.http.world import world

KEY = "a-key-of-sixteen-or-more"
KEYED = Access(api_key=KEY, origins=(), is_local=True)
WEB = "https://chat.example"
PAGES = Access(api_key="", origins=(WEB,), is_local=True)
PATHS = sorted({path.replace("*", "toy") for _, path in routes_of(None)})


@pytest.mark.spec("H-03")
@pytest.mark.parametrize("path", PATHS)
async def test_without_the_key_there_is_nothing_but_health_and_the_page(path, autojump_clock):
    async with world(access=KEYED) as there:
        client = there.client()
        is_open = path in ("/", "/health", "/ready")
        for fields in (
            {},
            {"authorization": f"Bearer {KEY}x"},
            {"authorization": f"Basic {KEY}"},
            {"authorization": KEY},
            {"authorization": "Bearer"},
        ):
            answer = await client.ask("GET", path, fields=fields)
            assert (answer.status == 401) is not is_open
            if not is_open:
                assert answer.error["code"] == "invalid_api_key"
                assert answer.fields["www-authenticate"] == "Bearer"
                assert KEY not in answer.body.decode()
        knows = await client.ask("GET", path, fields={"authorization": f"bearer {KEY}"})
        assert knows.status != 401


@pytest.mark.spec("H-04")
async def test_a_preflight_is_answered_for_configured_origins_only(autojump_clock):
    async with world(access=PAGES) as there:
        client = there.client()
        asked = {"access-control-request-method": "POST",
                 "access-control-request-headers": "authorization, content-type"}  # fmt: skip
        yes = await client.ask("OPTIONS", "/v1/models", fields={"origin": WEB} | asked)
        assert yes.status == 204
        assert yes.fields["access-control-allow-origin"] == WEB
        assert "authorization" in yes.fields["access-control-allow-headers"]
        assert "POST" in yes.fields["access-control-allow-methods"]
        for origin in ("https://evil.example", "null", WEB + ".evil.example", ""):
            no = await client.ask("OPTIONS", "/v1/models", fields={"origin": origin} | asked)
            assert no.status == 204
            assert not any(name.startswith("access-control") for name in no.fields)


@pytest.mark.spec("H-04", "H-03")
async def test_a_preflight_needs_no_key(autojump_clock):
    access = Access(api_key=KEY, origins=(WEB,), is_local=True)
    async with world(access=access) as there:
        answer = await there.client().ask("OPTIONS", "/v1/models", fields={"origin": WEB})
        assert answer.fields["access-control-allow-origin"] == WEB
        refused = await there.client().ask("GET", "/v1/models", fields={"origin": WEB})
        # The page may read why.
        assert (refused.status, refused.fields["access-control-allow-origin"]) == (401, WEB)


@pytest.mark.spec("H-04")
async def test_pages_of_other_origins_make_no_work(autojump_clock):
    async with world(access=PAGES) as there:
        client = there.client()
        body = {"prompt": "abc", "max_tokens": 2, "temperature": 0}
        for origin, status in (
            (WEB, 200), ("http://localhost", 200), ("", 200),
            ("https://evil.example", 403), ("null", 403), ("http://localhost:99", 403),
        ):  # fmt: skip
            fields = {"origin": origin} if origin else {}
            answer = await client.ask("POST", "/v1/completions", body, fields)
            assert answer.status == status, origin
        read = await client.ask("GET", "/v1/models", fields={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in read.fields


@pytest.mark.spec("H-04")
@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("localhost:8051", True),
        ("127.0.0.1:8051", True),
        ("[::1]:8051", True),
        ("evil.example", False),
        ("evil.example:8051", False),
        ("192.168.1.4:8051", False),
    ],
)
async def test_a_loopback_door_answers_to_loopback_names(host, is_ours, autojump_clock):
    async with world() as there:
        answer = await there.client().ask("GET", "/health", fields={"host": host})
        assert answer.status == (200 if is_ours else 403)
    open_door = Access(api_key="", origins=(), is_local=False)
    async with world(access=open_door) as there:
        assert (await there.client().ask("GET", "/health", fields={"host": host})).status == 200


@pytest.mark.spec("H-15")
async def test_every_answer_has_a_request_id(autojump_clock):
    async with world() as there:
        client = there.client()
        mine = await client.ask("GET", "/nowhere", fields={"x-request-id": "mine-1"})
        assert (mine.status, mine.fields["x-request-id"]) == (404, "mine-1")
        for bad in ("x" * 200, "café".encode().decode("latin-1")):
            made = (await client.ask("GET", "/health", fields={"x-request-id": bad})).fields
            assert len(made["x-request-id"]) == 24
        streams = [await client.complete(stream=True) for _ in range(2)]
        assert len({each.fields["x-request-id"] for each in streams}) == 2


@pytest.mark.spec("H-05")
async def test_paths_and_methods_that_are_not_there(autojump_clock):
    async with world() as there:
        client = there.client()
        assert (await client.ask("GET", "/v2")).status == 404
        wrong = await client.ask("GET", "/v1/chat/completions")
        assert (wrong.status, wrong.fields["allow"]) == (405, "POST")
        assert (await client.ask("DELETE", "/v1/models")).status == 405
        query = await client.ask("GET", "/v1/models?limit=3")
        assert query.status == 200
        assert (await client.ask("GET", "/v1/models/")).status == 404
        assert (await client.ask("GET", "/v1/models/a%2Fb")).error["code"] == "model_not_found"


@pytest.mark.spec("H-14")
async def test_alive_is_not_ready(autojump_clock):
    async with world(is_loaded=False) as there:
        client = there.client()
        assert (await client.ask("GET", "/health")).status == 200
        loading = await client.ask("GET", "/ready")
        assert (loading.status, int(loading.fields["retry-after"]) > 0) == (503, True)
        there.slot.fill(there.ready)
        assert (await client.ask("GET", "/ready")).json == {"status": "ready", "model": "toy"}


@pytest.mark.spec("H-14")
async def test_a_node_without_a_verifier_is_ready_and_has_no_models(autojump_clock):
    async with world(is_loaded=False) as there:
        there.slot.model_id = ""
        there.slot.leave_empty()
        client = there.client()
        assert (await client.ask("GET", "/ready")).status == 200
        assert (await client.ask("GET", "/v1/models")).json["data"] == []
        answer = await client.chat()
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
