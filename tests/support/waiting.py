"""Waiting for what happens in the background."""

import time
from collections.abc import Callable


def wait_for(has_happened: Callable[[], object], what: str = "", within_s: float = 90) -> float:
    """How long it took. That says nothing on a busy machine, so the limit is generous."""
    began = time.monotonic()
    while not has_happened():
        assert time.monotonic() < began + within_s, f"it did not happen: {what}"
        time.sleep(0.02)
    return time.monotonic() - began
