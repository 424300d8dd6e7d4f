import purerpc
import kakeya.wire.pb.kakeya.v1.distributed_pb2 as kakeya_dot_v1_dot_distributed__pb2


class CapabilityServiceServicer(purerpc.Servicer):
    async def ExchangeCapabilities(self, input_message):
        raise NotImplementedError()

    async def GetNodeCapability(self, input_message):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "kakeya.v1.CapabilityService"
        )
        service_obj.add_method(
            "ExchangeCapabilities",
            self.ExchangeCapabilities,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ExchangeCapabilitiesRequest,
                kakeya_dot_v1_dot_distributed__pb2.ExchangeCapabilitiesResponse,
            )
        )
        service_obj.add_method(
            "GetNodeCapability",
            self.GetNodeCapability,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.GetNodeCapabilityRequest,
                kakeya_dot_v1_dot_distributed__pb2.GetNodeCapabilityResponse,
            )
        )
        return service_obj


class CapabilityServiceStub:
    def __init__(self, channel):
        self._client = channel.client("kakeya.v1.CapabilityService")
        self.ExchangeCapabilities = self._client.get_method_stub(
            "ExchangeCapabilities",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ExchangeCapabilitiesRequest,
                kakeya_dot_v1_dot_distributed__pb2.ExchangeCapabilitiesResponse,
            )
        )
        self.GetNodeCapability = self._client.get_method_stub(
            "GetNodeCapability",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.GetNodeCapabilityRequest,
                kakeya_dot_v1_dot_distributed__pb2.GetNodeCapabilityResponse,
            )
        )


class ProposerServiceServicer(purerpc.Servicer):
    async def ProposeBlock(self, input_message):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "kakeya.v1.ProposerService"
        )
        service_obj.add_method(
            "ProposeBlock",
            self.ProposeBlock,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ProposeBlockRequest,
                kakeya_dot_v1_dot_distributed__pb2.ProposeBlockResponse,
            )
        )
        return service_obj


class ProposerServiceStub:
    def __init__(self, channel):
        self._client = channel.client("kakeya.v1.ProposerService")
        self.ProposeBlock = self._client.get_method_stub(
            "ProposeBlock",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ProposeBlockRequest,
                kakeya_dot_v1_dot_distributed__pb2.ProposeBlockResponse,
            )
        )


class DFlashProposerServiceServicer(purerpc.Servicer):
    async def Restore(self, input_message):
        raise NotImplementedError()

    async def SeedContext(self, input_message):
        raise NotImplementedError()

    async def DraftBlock(self, input_message):
        raise NotImplementedError()

    async def ExtendContext(self, input_message):
        raise NotImplementedError()

    async def CloseSession(self, input_message):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "kakeya.v1.DFlashProposerService"
        )
        service_obj.add_method(
            "Restore",
            self.Restore,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.RestoreRequest,
                kakeya_dot_v1_dot_distributed__pb2.RestoreResponse,
            )
        )
        service_obj.add_method(
            "SeedContext",
            self.SeedContext,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.SeedContextRequest,
                kakeya_dot_v1_dot_distributed__pb2.SeedContextResponse,
            )
        )
        service_obj.add_method(
            "DraftBlock",
            self.DraftBlock,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.DraftBlockRequest,
                kakeya_dot_v1_dot_distributed__pb2.DraftBlockResponse,
            )
        )
        service_obj.add_method(
            "ExtendContext",
            self.ExtendContext,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ExtendContextRequest,
                kakeya_dot_v1_dot_distributed__pb2.ExtendContextResponse,
            )
        )
        service_obj.add_method(
            "CloseSession",
            self.CloseSession,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.DFlashProposerServiceCloseSessionRequest,
                kakeya_dot_v1_dot_distributed__pb2.DFlashProposerServiceCloseSessionResponse,
            )
        )
        return service_obj


class DFlashProposerServiceStub:
    def __init__(self, channel):
        self._client = channel.client("kakeya.v1.DFlashProposerService")
        self.Restore = self._client.get_method_stub(
            "Restore",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.RestoreRequest,
                kakeya_dot_v1_dot_distributed__pb2.RestoreResponse,
            )
        )
        self.SeedContext = self._client.get_method_stub(
            "SeedContext",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.SeedContextRequest,
                kakeya_dot_v1_dot_distributed__pb2.SeedContextResponse,
            )
        )
        self.DraftBlock = self._client.get_method_stub(
            "DraftBlock",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.DraftBlockRequest,
                kakeya_dot_v1_dot_distributed__pb2.DraftBlockResponse,
            )
        )
        self.ExtendContext = self._client.get_method_stub(
            "ExtendContext",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.ExtendContextRequest,
                kakeya_dot_v1_dot_distributed__pb2.ExtendContextResponse,
            )
        )
        self.CloseSession = self._client.get_method_stub(
            "CloseSession",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_v1_dot_distributed__pb2.DFlashProposerServiceCloseSessionRequest,
                kakeya_dot_v1_dot_distributed__pb2.DFlashProposerServiceCloseSessionResponse,
            )
        )