"""A TLS port in front of a Redis: the one in the wheel was built without."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import ssl
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """The port on which TLS is spoken; what comes out of it goes to ``port`` on this machine."""
    started: queue.SimpleQueue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()

    async def serve() -> None:
        stop = asyncio.Event()
        async with await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context) as server:
            started.put((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
            await stop.wait()
            connections = asyncio.all_tasks() - {asyncio.current_task()}
            for each in connections:
                each.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            await asyncio.sleep(0.1)  # a connection that broke off in its handshake is closed by the loop itself

    async def connect(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        redis, to_redis = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pass_on(client, to_redis), pass_on(redis, to_client))
        finally:
            for writer in (to_redis, to_client):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
        target.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    tls_port, loop, stop = started.get(timeout=60)
    try:
        yield tls_port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
