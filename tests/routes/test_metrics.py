"""GET /metrics: every figure of it, after something happened that it counts."""

from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.build import build
from orchestrator.config.model import load_config
from orchestrator.config.settings import SettingsError, load_settings
from orchestrator.delivery.counters import GUESS_RATE
from orchestrator.version import our_version
from orchestrator.watch import find_facts
from routes.metrics import serving_metrics
from tests.routes.conftest import App, StartApp, bearer
from tests.support.prometheus_server import samples
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, WorkerProcess, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

METRICS_TOKEN = "metrics-token-for-tests"
LOT = {"subject": "Lot 456"}
TEN_WORDS = "One two three four five six seven eight nine ten"


def scrape(app: App, token: str = ADMIN_TOKEN) -> dict[str, float]:
    answer = app.http.get("/metrics", headers=bearer(token))
    assert answer.status_code == 200
    return samples(answer.text)


def emails(status: str, provider: str = "gmail") -> str:
    return f"mailonce_emails_total{{provider={provider},status={status}}}"


def deliveries(outcome: str, destination: str = "default") -> str:
    return f"mailonce_deliveries_total{{destination={destination},outcome={outcome}}}"


def test_it_needs_the_admin_token_or_the_metrics_token(start_app: StartApp) -> None:
    app, without = start_app(metrics_token=METRICS_TOKEN), start_app()
    for token, statuses in ((ADMIN_TOKEN, (200, 200)), (METRICS_TOKEN, (200, 401)), (INGRESS_TOKEN, (401, 401))):
        answers = [server.http.get("/metrics", headers=bearer(token)) for server in (app, without)]
        assert tuple(answer.status_code for answer in answers) == statuses
    for headers in ({}, bearer("")):
        assert without.http.get("/metrics", headers=headers).status_code == 401
    assert app.http.get("/api/admin/stats", headers=bearer(METRICS_TOKEN)).status_code == 401, "it opens nothing else"


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"])
def test_prometheus_gets_the_format_it_asks_for(app: App, accept: str) -> None:
    app.post(email())
    answer = app.http.get("/metrics", headers=bearer(ADMIN_TOKEN) | {"Accept": accept})
    assert answer.content_type.startswith(accept.partition(";")[0] or "text/plain")
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in accept)


def test_emails_are_counted_by_provider_and_by_what_was_answered(app: App) -> None:
    app.post(email(subject="Re: lot 456"))
    app.post(email(subject="Re: lot 456"))
    app.post(email(**LOT))
    app.post(email(**LOT, date="2026-11-16T10:00:00Z"))
    app.post({"subject": 5})
    app.http.post("/api/ingress/gmail", json=email(), headers=bearer("wrong"))
    app.http.post("/api/ingress/message", json=email(), headers=bearer("wrong"))
    messages: list[dict[str, Any]] = [{"source": "tg:news", "id": number, "text": TEN_WORDS} for number in (1, 2)]
    app.http.post("/api/ingress/message", json=[*messages, {"source": ""}], headers=bearer(INGRESS_TOKEN))
    found = scrape(app)
    assert {name: count for name, count in found.items() if name.startswith("mailonce_emails_total")} == {
        emails("processed"): 2,
        emails("already_processed"): 1,
        emails("skipped_subject_group"): 1,
        emails("invalid"): 1,
        emails("unauthorized"): 1,
        emails("unauthorized", "message"): 1,
        emails("processed", "message"): 1,
        emails("skipped_content", "message"): 1,
        emails("invalid", "message"): 1,
    }
    for gate in ("identity", "subject_group", "content"):
        assert found[f"mailonce_duplicates_total{{gate={gate}}}"] == 1
    assert (found[deliveries("delivered")], found[deliveries("skipped")]) == (3, 2)
    assert found["mailonce_hit_ratio"] == 3 / 6
    assert found["mailonce_subject_groups_total"] == 1, "a reply is the first of none"
    assert found["mailonce_decision_seconds_count"] == 6
    assert found["mailonce_request_seconds_count"] == 8
    assert found["mailonce_delivery_seconds_count{destination=default}"] == 3
    assert found["mailonce_delivery_seconds_bucket{destination=default,le=+Inf}"] == 3
    assert found[f"mailonce_build_info{{version={our_version()}}}"] == 1
    assert "mailonce_workers_alive" not in found, "requests deliver"


def test_attempts_breakers_and_pauses_are_exposed(start_app: StartApp) -> None:
    with Sink(Reply(200), Reply(500), Reply(500), Reply(500)) as sink:
        app = start_app(
            toml=f"[destinations.crm]\nurl = '{sink.url}'\nbreaker_failures = 2\nbreaker_pause_s = 3600\n"
            "[destinations.archive]\nurl = 'log:'\nenabled = false\n"
            "[[routes]]\nname = 'all'\ndestinations = ['crm', 'archive']\n"
        )
        for number in range(3):
            app.post(email(subject=f"number {number}"))
    app.http.post("/api/admin/destinations/archive/pause", json={}, headers=bearer(ADMIN_TOKEN))
    found = scrape(app)
    assert [found[deliveries(outcome, "crm")] for outcome in ("delivered", "dead", "failed")] == [1, 0, 3]
    assert found["mailonce_delivery_seconds_count{destination=crm}"] == 4, "each POST"
    assert found["mailonce_dead_letters{destination=crm}"] == 0
    assert found["mailonce_oldest_waiting_seconds{destination=crm}"] < 600
    waiting = [found[f"mailonce_deliveries_waiting{{destination={name}}}"] for name in ("crm", "archive")]
    assert waiting == [2, 3]
    breaker = [found[f"mailonce_breaker_state{{destination=crm,state={state}}}"] for state in ("open", "closed")]
    assert breaker == [1, 0]
    paused = [found[f"mailonce_destination_paused{{destination={name}}}"] for name in ("crm", "archive")]
    assert paused == [0, 1]
    assert found["mailonce_destination_enabled{destination=archive}"] == 0
    found = scrape(start_app(toml="[destinations.new]\nurl = 'log:'\n"))
    assert found["mailonce_deliveries_waiting{destination=crm}"] == 2, "it is no longer configured"
    assert "mailonce_destination_enabled{destination=crm}" not in found


def test_facts_of_redis_and_workers(start_app: StartApp, redis_server: RedisServer) -> None:
    app = start_app(redis_url=redis_server.url, deliver_by="workers", webhook_url=f"http://127.0.0.1:{free_port()}/")
    wait_for(lambda: app.status_of(email()) == "queued")
    app.post(email(subject="another"))
    find_facts(app.service)
    found = scrape(app)
    assert found["mailonce_deliveries_waiting{destination=default}"] == 2
    assert (found["mailonce_workers_alive"], found["mailonce_members"]) == (0, 1)
    assert found["mailonce_redis_maxmemory_policy{policy=noeviction}"] == 1
    assert found["mailonce_redis_evicted_keys_total"] == 0
    assert (found["mailonce_local_journal"], found["mailonce_journal_answers"]) == (0, 1)
    assert found["mailonce_redis_steps_total"] >= 4
    wait_for(lambda: scrape(app)["mailonce_redis_seconds_total{status=up}"] > 0)
    wait_for(lambda: scrape(app)["mailonce_unpublished_entries"] == 0)
    worker = build(app.service.settings, is_worker=True)
    wait_for(lambda: scrape(app)["mailonce_workers_alive"] == 1)
    worker.close()
    assert scrape(app)["mailonce_workers_alive"] == 0


def test_totals_survive_kill_9_and_restarts_of_several_processes(tmp_path: Path) -> None:
    def totals(server: Server) -> dict[str, float]:
        answer = requests.get(f"{server.url}/metrics", headers=bearer(ADMIN_TOKEN), timeout=30)
        found = samples(answer.text)
        return {name: found.get(name, 0) for name in (emails("processed"), emails("already_processed"))}

    server = Server(tmp_path / "data", WEB_CONCURRENCY="2").start()
    try:
        for number in range(20):
            for _ in range(2):
                assert server.post(email(subject=f"number {number}")).status_code == 200
        wait_for(lambda: totals(server) == {emails("processed"): 20, emails("already_processed"): 20})
        server.kill()
        server.start()
        for number in range(20, 30):
            server.post(email(subject=f"number {number}"))
        server.stop()
        server.start()
        assert totals(server) == {emails("processed"): 30, emails("already_processed"): 20}
    finally:
        server.stop()


def test_metrics_of_a_worker(redis_server: RedisServer, sink: Sink, tmp_path: Path) -> None:
    port = str(free_port())
    settings = {"REDIS_URL": redis_server.url, "DELIVER_BY": "workers", "WEBHOOK_URL": sink.url}
    own = {"WORKER_METRICS_PORT": port, "ADMIN_TOKEN": ADMIN_TOKEN, "METRICS_TOKEN": METRICS_TOKEN}
    url = f"http://127.0.0.1:{port}/metrics"

    def counts() -> dict[str, float]:
        return samples(requests.get(url, headers=bearer(METRICS_TOKEN), timeout=30).text)

    with Server(tmp_path / "web", **settings) as server, WorkerProcess(tmp_path / "worker", **settings, **own):
        wait_for(lambda: server.post(email()).status_code == 200)
        wait_for(lambda: counts()[deliveries("delivered")] == 1)
        assert emails("queued") not in counts(), "that was counted elsewhere"
        wait_for(lambda: counts()["mailonce_workers_alive"] == 1)
        guesses = [requests.get(url, headers=bearer(INGRESS_TOKEN), timeout=30).status_code for _ in range(21)]
        assert guesses == [401] * GUESS_RATE.amount + [429]
        answer = requests.get(f"{server.url}/metrics", headers=bearer(ADMIN_TOKEN), timeout=30)
        assert answer.status_code == 429, "all servers count together"


def test_a_worker_does_not_start_if_its_metrics_port_is_in_use(tmp_path: Path, sink: Sink) -> None:
    port = sink.url.rpartition(":")[2].partition("/")[0]
    settings = load_settings(data_dir=tmp_path, worker_metrics_port=port)
    serving = serving_metrics(settings, load_config(settings))
    with pytest.raises(SettingsError, match="WORKER_METRICS_PORT must be a free port"), serving:
        pass
