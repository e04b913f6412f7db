from __future__ import annotations

import pytest

from orchestrator.operations.proxy_watch import SHOWN_FOR_S, WARNING, ProxyWatch


def test_a_proxy_is_logged_once_and_shown_until_it_was_silent_for_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watch = ProxyWatch(lambda: now[0])
    assert watch.warnings() == []
    for _ in range(3):
        watch.note("192.0.2.7")
        now[0] += SHOWN_FOR_S - 1
        assert watch.warnings() == [WARNING]
    (line,) = caplog.messages
    assert "TRUSTED_PROXIES" in line and "192.0.2.7" in line
    now[0] += 1
    assert watch.warnings() == []
