"""Threads behind the requests."""

import threading
from collections.abc import Callable

from deduplication.errors import try_to


class Threads:
    """Each thread repeats its work until they are closed. The work pauses by itself, and may wait for ``stop``."""

    def __init__(self, name: str, *works: Callable[[], object]) -> None:
        self.stop = threading.Event()
        self._name = name
        self._threads = [threading.Thread(target=self._run, args=(work,), name=name, daemon=True) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Waits until the present work is done."""
        self.stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _run(self, work: Callable[[], object]) -> None:
        while not self.stop.is_set():
            self.stop.wait(try_to(work, self._name))
