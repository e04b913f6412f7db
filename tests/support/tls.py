"""A TLS port in front of a Redis: the one in the wheel was built without."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """The port on which TLS is spoken; what comes out of it goes to ``port`` on this machine."""

    async def connect(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        redis, to_redis = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(client, to_redis), pass_on(redis, to_client))

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
        target.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)
    server = asyncio.run_coroutine_threadsafe(listening, loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
