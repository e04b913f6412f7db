"""The service, wired as always, but with steps that kill or stop the worker once, where the test asks for it.

CRASH_AT names the step (before claim, after claim, before send, after send, before commit, after commit), CRASH_SIGNAL
the signal; CRASH_ONCE is a file that exists once it has happened.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from deduplication.claims import Claim, Verdict
from orchestrator.delivery.webhook import Destination, Receipt, Webhook
from orchestrator.leases import LeaseKeeper
from orchestrator.logs import configure_logging
from orchestrator.settings import load_settings
from orchestrator.wiring import build
from routes.app import create_app

_AT = os.environ["CRASH_AT"]
_SIGNAL = signal.Signals[os.environ["CRASH_SIGNAL"]]
_ONCE = Path(os.environ["CRASH_ONCE"])
_ARMED = Path(os.environ["CRASH_ONCE"] + ".armed")


def crash_if(step: str) -> None:
    if step == _AT and _ARMED.exists():
        try:
            _ONCE.touch(exist_ok=False)
        except FileExistsError:
            return
        signal.pthread_kill(threading.get_ident(), _SIGNAL)  # to this very thread, so that it goes no further


class CrashingStore:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, claim: Claim) -> Verdict:
        crash_if("before claim")
        verdict: Verdict = self._store.claim(claim)
        crash_if("after claim")
        return verdict

    def commit(self, claim: Claim) -> bool:
        crash_if("before commit")
        committed: bool = self._store.commit(claim)
        crash_if("after commit")
        return committed


class CrashingDestination:
    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        crash_if("before send")
        receipt = self._destination.deliver(webhook, within_s)
        crash_if("after send")
        return receipt


_settings = load_settings()
configure_logging(_settings.log_level)
_service = build(_settings)
_dispatcher = _service.intake.dispatcher
_places = {
    name: replace(place, destination=CrashingDestination(place.destination))
    for name, place in _dispatcher.courier.places.items()
}
_store = CrashingStore(_service.store)
_leases = LeaseKeeper(_store, _settings.lease_ms)
_dispatcher = replace(_dispatcher, store=_store, leases=_leases, courier=replace(_dispatcher.courier, places=_places))
app = create_app(
    replace(_service, intake=replace(_service.intake, store=_store, leases=_leases, dispatcher=_dispatcher))
)
