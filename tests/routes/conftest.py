"""The whole service behind Flask's test client: real settings, real sqlite, and a real sink where one is given.

Whatever is answered in any of these tests must be described in /api/openapi.json.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from flask.testing import FlaskClient
from redis.exceptions import RedisError
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from deduplication.journal import fleet
from deduplication.journal.entry import Entry
from deduplication.redis_client import connect
from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from routes.app import create_app
from routes.command_line import main
from tests.support.described import check_webhook, checking_client
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, PATIENT_MS
from tests.support.sink import Sink

OLD_TOKEN, NEW_TOKEN = "the-old-token-of-someone", "the-new-token-of-someone"


@dataclass(frozen=True)
class App:
    service: Service
    http: FlaskClient

    def post(self, payload: object) -> TestResponse:
        """An email, as the provider sends it."""
        return self.http.post("/api/ingress/gmail", json=payload, headers=bearer(INGRESS_TOKEN))

    def status_of(self, payload: object) -> str:
        return str(self.post(payload).get_json()["status"])

    def settle(self) -> None:
        """Waits for what happens behind the requests: outcomes are published, repeats written."""
        while self.service.coordinator.publish_waiting():
            pass
        self.service.coordinator.tend()

    @property
    def entries(self) -> list[Entry]:
        """Everything in the journal, newest first."""
        with self.service.journal.reading() as step:
            return [entry for _, entry in step.read_rows("1 ORDER BY seq DESC", ())]

    def ask(self, path: str) -> Any:
        """What /api/admin answers to an operator who looks."""
        return self.http.get(f"/api/admin/{path}", headers=bearer(ADMIN_TOKEN)).get_json()

    def act(self, path: str, **document: Any) -> Any:
        return self.http.post(f"/api/admin/{path}", json=document, headers=bearer(ADMIN_TOKEN)).get_json()

    def delivery_to(self, destination: str) -> Any:
        """The one delivery that there is to this destination."""
        (found,) = self.ask(f"deliveries?destination={destination}")["deliveries"]
        return found

    def try_again(self) -> None:
        """As if the time of the next try had come."""
        for destination in self.service.config.destinations:
            self.service.coordinator.hasten(destination, 100)
        self.service.retrier.tick()


StartApp = Callable[..., App]
Builder = Callable[..., tuple[str, str]]


def remember_url_builders() -> None:
    """Tests make thousands of apps with the same addresses.

    Werkzeug compiles two functions for each, which is two thirds of making an app. They depend on nothing but the
    parts of the address (and defaults, which we have none of).
    """
    compile_builder = Rule._compile_builder
    known: dict[tuple[object, ...], Builder] = {}

    def compile_or_remember(rule: Rule, append_unknown: bool = True) -> Builder:
        assert not rule.defaults
        parts = (*rule._trace, append_unknown)
        if parts not in known:
            known[parts] = compile_builder(rule, append_unknown)
        return known[parts]

    Rule._compile_builder = compile_or_remember  # type: ignore[method-assign, assignment]


remember_url_builders()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def write_toml(folder: Path, **destinations: Sink | str) -> Path:
    """With these destinations, each a sink or lines of its section, and one route to all of them without groups."""
    lines = {name: f"url = '{each.url}'" if isinstance(each, Sink) else each for name, each in destinations.items()}
    sections = [f"[destinations.{name}]\n{each}\n" for name, each in lines.items()]
    route = f"[[routes]]\nname = 'all'\ndestinations = {list(lines)}\nsubject_groups = 'off'\n"
    file = folder / "mailonce.toml"
    file.write_text("".join([*sections, route]))
    return file


def impatient(sink: Sink) -> str:
    """A mailonce.toml whose one destination, as WEBHOOK_URL would name it, takes the first failure for the last."""
    return f"[destinations.default]\nurl = '{sink.url}'\nmax_attempts = 1\n"


def open_era(url: str, prefix: str) -> bool:
    """A new Redis grants nothing for some seconds (rule 13); tests begin after that. False if it is away."""
    with connect(url, 5.0) as client, suppress(RedisError):
        client.set(f"{prefix}era", f"{client.info('server')['run_id']} test 0 0", nx=True)
        return True
    return False


def wait_for_redis(service: Service) -> None:
    ends_at = time.monotonic() + 20
    while time.monotonic() < ends_at:
        with service.journal.reading() as step:
            if service.coordinator.redis.status == "up" and step.meta("read_ms") and not step.meta("restore"):
                return
        time.sleep(0.01)
    raise AssertionError("the service did not begin to use Redis")


@pytest.fixture(params=["sqlite", "redis"])
def redis_url(request: pytest.FixtureRequest) -> str:
    """Without Redis, and of one."""
    server: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None
    return server.url if server else ""


@pytest.fixture
def start_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartApp]:
    """Builds services on one DATA_DIR, with what ``toml`` says in mailonce.toml; all are closed in the end."""
    monkeypatch.setattr(fleet, "TICK_S", 0.05)  # each start on Redis takes over an era, and waits for the next tick
    built: list[Service] = []

    def start(now: Callable[[], datetime] | None = None, toml: str | None = None, **settings: Any) -> App:
        if toml is not None:
            settings["mailonce_config"] = tmp_path / f"{len(built)}.toml"
            settings["mailonce_config"].write_text(toml, encoding="utf-8")
        own = {"data_dir": tmp_path / "data", "ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        patient = {"redis_timeout_ms": PATIENT_MS, "memory_limit_mb": 100_000}  # this process has run many tests
        loaded = load_settings(**own | patient | settings)
        is_up = bool(loaded.redis_url) and open_era(loaded.redis_url, loaded.redis_prefix)
        service = build(loaded)
        built.append(service)
        if now:
            service.pipeline = replace(service.pipeline, now=now)
        if is_up:
            wait_for_redis(service)
        return App(service, checking_client(create_app(service), service.config))

    yield start
    for service in built:
        service.close()


@pytest.fixture
def start_with(start_app: StartApp, tmp_path: Path) -> StartApp:
    """With these destinations, as ``write_toml`` takes them."""

    def start(settings: dict[str, Any] | None = None, **destinations: Sink | str) -> App:
        return start_app(mailonce_config=write_toml(tmp_path, **destinations), **settings or {})

    return start


@pytest.fixture
def sink() -> Iterator[Sink]:
    """What it was sent in the end must be described, too."""
    with Sink() as sink:
        yield sink
    for webhook in sink.received:
        if webhook.headers.get("Content-Type") == "application/json":
            check_webhook(webhook.payload)


@pytest.fixture
def app(start_app: StartApp, sink: Sink) -> App:
    return start_app(webhook_url=sink.url)


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """In a folder of its own, on the data that ``start_app`` uses."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))

    def call(*words: str) -> Result:
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return call
