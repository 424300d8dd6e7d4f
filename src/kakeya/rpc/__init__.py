"""gRPC on Trio: our own HTTP/2 engine under purerpc's generated stubs, services and statuses.

Calling::

    channels = Channels(dialer=TcpDialer(limits), limits=limits, rng=rng)
    await nursery.start(channels.serve)
    stub = CapabilityServiceStub(channels.to("10.0.0.2:50051"))
    with trio.fail_after(2):                       # is sent as the call's deadline
        answer = await stub.ExchangeCapabilities(request)    # or RpcFailedError, never a hang
    async with aclosing(stub.Generate(request)) as events:   # leaving it ends the call
        async for event in events: ...

Serving::

    endpoint = Endpoint([servicer.service], limits=limits, admit=guarded_by(key))
    server = await open_server("127.0.0.1", 50051, limits=limits)  # Refused: the port is taken
    await nursery.start(server.serve, endpoint)
    with trio.move_on_after(10):                             # then cancel serve()
        await server.drain()

A handler is `async def Method(self, input_message)` or `(self, input_message, request)` with the
`endpoint.Call`; it raises `Refused(status, why)` to answer with a status.
"""
