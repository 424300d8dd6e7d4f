"""The calls to peers as they are really made: over the node's shared connections."""

from __future__ import annotations

from typing import Any

import purerpc

from kakeya.errors import Refused
from kakeya.fleet.calls import SERVICE, CallFailed, View, signature_of
from kakeya.rpc.channel import Channels
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb


class ChannelCalls:
    """PeerCalls over channels, which carry the fleet's name in their metadata."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def exchange(self, grpc_address: str, view: bytes) -> bytes:
        return await self._call(grpc_address, "ExchangeCapabilities", View(view))

    async def probe(self, grpc_address: str) -> bytes:
        return await self._call(grpc_address, "GetNodeCapability", pb.GetNodeCapabilityRequest())

    def drop_connections(self) -> None:
        self._channels.drop_all()

    async def _call(self, grpc_address: str, method: str, message: Any) -> bytes:
        client = purerpc.Client(SERVICE, self._channels.to(grpc_address))
        try:
            answer: View = await client.get_method_stub(method, signature_of(type(message)))(
                message
            )
        except RpcFailedError as error:
            raise CallFailed(status_name(error), status_text(error)) from None
        except Refused as refused:
            raise CallFailed(refused.status, refused.why) from None
        return answer.content
