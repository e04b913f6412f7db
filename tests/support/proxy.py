"""A TCP proxy between the servers and Redis that can cut, hang, be slow, and lose requests or replies."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from enum import StrEnum


class Fault(StrEnum):
    NONE = "none"
    REFUSE = "refuse"  # existing connections are cut, new ones are closed at once
    HANG = "hang"  # nothing passes either way, connections stay
    CUT_BEFORE_SEND = "cut before send"  # a request is swallowed and its connection closed
    CUT_AFTER_SEND = "cut after send"  # a request reaches Redis, its reply does not come back
    CUT_MID_REPLY = "cut mid-reply"  # half of the reply comes back


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._fault = Fault.NONE
        self._once = False
        self._is_meant: Callable[[bytes], bool] = lambda request: True
        self.cuts = 0  # how often a request or a reply was lost
        self.delay_s = 0.0  # how much later every reply comes
        self.bytes_per_s = 0  # of requests on a slow line; 0: as fast as they come
        self.delayed = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._requests: dict[tuple[socket.socket, socket.socket], bytes] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        with contextlib.suppress(OSError):  # wakes the thread that waits in accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut_all()

    def set(self, fault: Fault, *, once: bool = False, meant: Callable[[bytes], bool] = lambda request: True) -> None:
        """``once``: one request or reply only. ``meant``: which requests, or their replies."""
        self._fault, self._once, self._is_meant = fault, once, meant
        if fault is Fault.REFUSE:
            self._cut_all()

    def _strikes(self, fault: Fault, request: bytes) -> bool:
        with self._lock:
            if self._fault is not fault or not self._is_meant(request):
                return False
            if self._once:
                self._fault = Fault.NONE
            self.cuts += 1
            return True

    def _cut_all(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._close(pair)

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._fault is Fault.REFUSE:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port), timeout=1)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._pump_requests, args=(pair,), daemon=True).start()
            threading.Thread(target=self._pump_replies, args=(pair,), daemon=True).start()

    def _pump_requests(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                self._wait_while_hanging()
                self._requests[pair] = chunk
                if self._strikes(Fault.CUT_BEFORE_SEND, chunk):
                    break
                if self.bytes_per_s:
                    time.sleep(len(chunk) / self.bytes_per_s)
                server.sendall(chunk)
        self._close(pair)

    def _pump_replies(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while chunk := server.recv(65536):
                self._wait_while_hanging()
                if self.delay_s:
                    time.sleep(self.delay_s)
                    self.delayed += 1
                request = self._requests.get(pair, b"")
                if self._strikes(Fault.CUT_AFTER_SEND, request):
                    break
                if self._strikes(Fault.CUT_MID_REPLY, request):
                    client.sendall(chunk[: len(chunk) // 2])
                    break
                client.sendall(chunk)
        self._close(pair)

    def _wait_while_hanging(self) -> None:
        while self._fault is Fault.HANG and self._is_open:
            time.sleep(0.01)
        if self._fault is Fault.REFUSE:
            raise ConnectionError("what was hanging does not arrive late")

    def _close(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
            self._requests.pop(pair, None)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
