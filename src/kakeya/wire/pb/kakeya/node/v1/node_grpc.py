import purerpc
import kakeya.wire.pb.kakeya.node.v1.node_pb2 as kakeya_dot_node_dot_v1_dot_node__pb2


class NodeServiceServicer(purerpc.Servicer):
    async def GetFleet(self, input_message):
        raise NotImplementedError()

    async def GetOverview(self, input_message):
        raise NotImplementedError()

    async def Generate(self, input_message):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "kakeya.node.v1.NodeService"
        )
        service_obj.add_method(
            "GetFleet",
            self.GetFleet,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetFleetRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetFleetResponse,
            )
        )
        service_obj.add_method(
            "GetOverview",
            self.GetOverview,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetOverviewRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetOverviewResponse,
            )
        )
        service_obj.add_method(
            "Generate",
            self.Generate,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_STREAM,
                kakeya_dot_node_dot_v1_dot_node__pb2.GenerateRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GenerateEvent,
            )
        )
        return service_obj


class NodeServiceStub:
    def __init__(self, channel):
        self._client = channel.client("kakeya.node.v1.NodeService")
        self.GetFleet = self._client.get_method_stub(
            "GetFleet",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetFleetRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetFleetResponse,
            )
        )
        self.GetOverview = self._client.get_method_stub(
            "GetOverview",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetOverviewRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GetOverviewResponse,
            )
        )
        self.Generate = self._client.get_method_stub(
            "Generate",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_STREAM,
                kakeya_dot_node_dot_v1_dot_node__pb2.GenerateRequest,
                kakeya_dot_node_dot_v1_dot_node__pb2.GenerateEvent,
            )
        )