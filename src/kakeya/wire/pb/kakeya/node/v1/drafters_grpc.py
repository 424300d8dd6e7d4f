import purerpc
import kakeya.wire.pb.kakeya.node.v1.drafters_pb2 as kakeya_dot_node_dot_v1_dot_drafters__pb2


class DrafterServiceServicer(purerpc.Servicer):
    async def ListDrafters(self, input_message):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "kakeya.node.v1.DrafterService"
        )
        service_obj.add_method(
            "ListDrafters",
            self.ListDrafters,
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_drafters__pb2.ListDraftersRequest,
                kakeya_dot_node_dot_v1_dot_drafters__pb2.ListDraftersResponse,
            )
        )
        return service_obj


class DrafterServiceStub:
    def __init__(self, channel):
        self._client = channel.client("kakeya.node.v1.DrafterService")
        self.ListDrafters = self._client.get_method_stub(
            "ListDrafters",
            purerpc.RPCSignature(
                purerpc.Cardinality.UNARY_UNARY,
                kakeya_dot_node_dot_v1_dot_drafters__pb2.ListDraftersRequest,
                kakeya_dot_node_dot_v1_dot_drafters__pb2.ListDraftersResponse,
            )
        )