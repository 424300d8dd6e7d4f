import purerpc
import kakeya.wire.pb.grpc.reflection.v1alpha.reflection_pb2 as grpc_dot_reflection_dot_v1alpha_dot_reflection__pb2


class ServerReflectionServicer(purerpc.Servicer):
    async def ServerReflectionInfo(self, input_messages):
        raise NotImplementedError()

    @property
    def service(self) -> purerpc.Service:
        service_obj = purerpc.Service(
            "grpc.reflection.v1alpha.ServerReflection"
        )
        service_obj.add_method(
            "ServerReflectionInfo",
            self.ServerReflectionInfo,
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_STREAM,
                grpc_dot_reflection_dot_v1alpha_dot_reflection__pb2.ServerReflectionRequest,
                grpc_dot_reflection_dot_v1alpha_dot_reflection__pb2.ServerReflectionResponse,
            )
        )
        return service_obj


class ServerReflectionStub:
    def __init__(self, channel):
        self._client = channel.client("grpc.reflection.v1alpha.ServerReflection")
        self.ServerReflectionInfo = self._client.get_method_stub(
            "ServerReflectionInfo",
            purerpc.RPCSignature(
                purerpc.Cardinality.STREAM_STREAM,
                grpc_dot_reflection_dot_v1alpha_dot_reflection__pb2.ServerReflectionRequest,
                grpc_dot_reflection_dot_v1alpha_dot_reflection__pb2.ServerReflectionResponse,
            )
        )