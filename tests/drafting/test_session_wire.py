"""Every state met by every request, asked by grpcio over a real socket."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from kakeya.config.sessions import SessionLimits
from kakeya.drafting import machine
from kakeya.drafting import session_states as s
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.drafting.session_host import Caller, Host, hosting, thread
from tests.drafting.session_requests import ONE_OF_EACH, PATHS
from tests.interop.grpcio_peer import OPTIONS, in_thread, serving
from tests.spec_tables import table

SERVICE = "kakeya.v1.DFlashProposerService"
METHODS = {
    "Restore": (pb.RestoreRequest, pb.RestoreResponse),
    "SeedContext": (pb.SeedContextRequest, pb.SeedContextResponse),
    "DraftBlock": (pb.DraftBlockRequest, pb.DraftBlockResponse),
    "ExtendContext": (pb.ExtendContextRequest, pb.ExtendContextResponse),
    "CloseSession": (
        pb.DFlashProposerServiceCloseSessionRequest,
        pb.DFlashProposerServiceCloseSessionResponse,
    ),
}
STATES = [*PATHS, s.Closed]
PAIRS = list(itertools.product(STATES, ONE_OF_EACH))
REFUSED_WITH = {row[:2]: row[4] for row in table(
    "session.md", "state", "request", "next", "guard", "refused with")}  # fmt: skip


class GrpcioStub:
    """The service as grpcio calls it; every call waits for its answer."""

    def __init__(self, channel: grpc.Channel) -> None:
        for name, (request, response) in METHODS.items():
            call = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(self, name, lambda message, call=call: call(message, timeout=10))


@dataclass
class Wire:
    host: Host
    channel: grpc.Channel
    peer: str

    def caller(self, name: str) -> Caller:
        return Caller(GrpcioStub(self.channel), name)

    def at(self, state: type, name: str = "s") -> Caller:
        """A session in `state`.  Opened lasts only as long as its Restore: it is made by hand."""
        caller = self.caller(name)
        if state is s.Closed:
            walk(caller, [s.Restore, s.SeedContext, s.CloseSession])
        else:
            walk(caller, PATHS[state])
        return caller


def walk(caller: Caller, requests) -> list:
    return [caller.of_kind(request) for request in requests]


@asynccontextmanager
async def wire(limits: SessionLimits | None = None):
    async with (
        hosting(limits=limits or SessionLimits(), device=thread()) as host,
        serving([host.service.service]) as server,
    ):
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            probe = Caller(GrpcioStub(channel), "probe")
            await in_thread(probe.restore)
            peer = host.sessions._open["probe"].peer
            await in_thread(probe.close)
            yield Wire(host, channel, peer)


def told(call) -> tuple[str, str]:
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def names(pair) -> tuple[str, str]:
    return pair[0].__name__, pair[1].__name__


def expected(pair) -> tuple[str, str]:
    """Status, and how the text begins."""
    state, request = pair
    if pair in machine.TABLE:
        return "OK", ""
    if state is s.Closed:
        answered = request in (s.Restore, s.CloseSession)
        return ("OK", "") if answered else ("NOT_FOUND", "session 's' has ended: closed by its")
    return "FAILED_PRECONDITION", f"{request.__name__} in state {state.__name__}"


@pytest.mark.spec("S-01", "S-02", "S-07", "S-10")
@pytest.mark.parametrize("pair", PAIRS, ids=names)
async def test_every_pair_over_the_wire(pair):
    state, request = pair
    async with wire() as there:
        if state is s.Opened:
            there.host.sessions.open("s", there.peer, there.host.drafter)
            caller = there.caller("s")
        else:
            caller = await in_thread(there.at, state)
        status, why = await in_thread(told, lambda: caller.of_kind(request))
        wanted, begins = expected(pair)
        assert (status, why[: len(begins)]) == (wanted, begins)
        if status == "FAILED_PRECONDITION":
            twin = await in_thread(there.at, s.Drafting, "twin")
            rest = [s.Restore, s.SeedContext, s.DraftBlock][len(PATHS[state]) :]
            await in_thread(walk, caller, rest)
            last = [s.ExtendContext, s.CloseSession]
            assert await in_thread(last_draft, caller) == await in_thread(last_draft, twin)
            await in_thread(walk, caller, last)


def last_draft(caller: Caller) -> list[int]:
    return list(caller.draft().draft_token_ids)


# Row by row what its guard refuses: a call that breaks it, and words of the answer.
BROKEN = {
    (s.Opened, s.Restore): (lambda c: c.restore([]), "length of prompt_ids is 0"),
    (s.Restored, s.Restore): (lambda c: c.restore([251]), "is 251, it must be below 251"),
    (s.Seeded, s.Restore): (lambda c: c.restore(window=0), "window is 0"),
    (s.Drafting, s.Restore): (lambda c: c.restore(sink=2**32 - 1), "sink is 4294967295"),
    (s.Restored, s.SeedContext): (lambda c: c.seed(7), "at most the prompt's 6"),
    (s.Seeded, s.ExtendContext): (lambda c: c.extend(5), "context_len is 6, positions start at 5"),
    (s.Drafting, s.ExtendContext): (lambda c: c.extend(7), "positions start at 7"),
    (s.Seeded, s.DraftBlock): (lambda c: c.draft(5), "context_len is 6, the request says 5"),
    (s.Drafting, s.DraftBlock): (lambda c: c.draft(7), "context_len is 6, the request says 7"),
}


@pytest.mark.spec("S-01", "S-02")
@pytest.mark.parametrize("pair", BROKEN, ids=names)
async def test_every_guard_over_the_wire(pair):
    broken, words = BROKEN[pair]
    async with wire(SessionLimits(early_s=0.05)) as there:
        caller = await in_thread(there.at, pair[0])
        status, why = await in_thread(told, lambda: broken(caller))
        assert status == REFUSED_WITH[names(pair)]
        assert words in why
        if pair[0] is s.Opened:
            assert there.host.sessions.counts().num_sessions == 0
            return
        rest = [s.Restore, s.SeedContext, s.DraftBlock][len(PATHS[pair[0]]) :]
        await in_thread(walk, caller, [*rest, s.ExtendContext, s.CloseSession])


def test_every_guard_of_the_spec_is_broken_by_a_test():
    assert {names(pair) for pair in BROKEN} == {row for row, why in REFUSED_WITH.items() if why}


@pytest.mark.spec("S-08")
async def test_rows_and_the_next_block_sent_side_by_side_by_grpcio():
    """Two streams of one connection, in either order, fifty blocks long."""
    async with wire() as there:

        def pipelined() -> list[list[int]]:
            stub = Caller(GrpcioStub(there.channel), "s")
            walk(stub, PATHS[s.Seeded])
            drafts, at = [], 6
            for number in range(50):
                messages = {
                    "ExtendContext": extend_message(at),
                    "DraftBlock": draft_message(at + 2),
                }
                order = sorted(messages, reverse=number % 2 == 0)
                sent = {name: future(there.channel, name, messages[name]) for name in order}
                assert sent["ExtendContext"].result(timeout=10).context_len == at + 2
                drafts.append(list(sent["DraftBlock"].result(timeout=10).draft_token_ids))
                at += 2
            return drafts

        drafts = await in_thread(pipelined)
        assert len({tuple(ids) for ids in drafts}) == 50


def extend_message(at: int) -> pb.ExtendContextRequest:
    made = []
    Caller(Keep(made)).extend(at, 2)
    return made[0]


def draft_message(at: int) -> pb.DraftBlockRequest:
    made = []
    Caller(Keep(made)).draft(at)
    return made[0]


class Keep:
    """Keeps the messages instead of sending them."""

    def __init__(self, made: list) -> None:
        self.ExtendContext = self.DraftBlock = made.append


def future(channel: grpc.Channel, name: str, message):
    return channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=METHODS[name][0].SerializeToString,
        response_deserializer=METHODS[name][1].FromString,
    ).future(message, timeout=10)
