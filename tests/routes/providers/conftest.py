"""The whole service with providers configured in mailonce.toml, and emails as providers send them."""

import io
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from werkzeug.datastructures import Headers
from werkzeug.test import TestResponse

from deduplication.email import Email
from deduplication.journal.entry import Entry
from deduplication.spool import Spool, spooled
from orchestrator.config.model import Config
from orchestrator.delivery.fetching import FetchFailed
from routes.providers.base import ProviderRequest, Surroundings
from routes.providers.registry import AnyProvider, open_providers
from routes.providers.samples import Enclosure, Letter, SampleRequest
from tests.routes.conftest import App, StartApp
from tests.support.server import INGRESS_TOKEN
from tests.support.sink import Sink

NOW = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
LETTER = Letter(
    subject="Été: les documents du lot 456",
    sender="Ada Lovelace <Ada@Example.org>",
    recipients=("Inbox <inbox@in.example.com>", "bob@example.org"),
    date="Mon, 16 Nov 2026 10:00:00 +0100",
    message_id="<4f145791.8040802@mail.example.org>",
    text="Voilà les fichiers.\n",
    html='<p>Voilà les <a href="https://files.example/456">fichiers</a>.</p>\n',
    enclosures=(
        Enclosure("liste.csv", "text/csv", b"lot;456\n"),
        Enclosure("photo.png", "image/png", bytes(range(256)) * 4),
    ),
)


class Fetches:
    """In place of HTTP requests: a page that is not in ``pages`` cannot be reached."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def __call__(self, url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int, **_: Any) -> bytes:
        self.asked.append((url, headers))
        if url not in self.pages:
            raise FetchFailed("nobody is there")
        if len(self.pages[url]) > max_bytes:
            raise FetchFailed("it is too large", permanent=True)
        return self.pages[url]

    @property
    def urls(self) -> list[str]:
        return [url for url, _ in self.asked]


@pytest.fixture(autouse=True)
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    """No test makes real requests."""
    stand_in = Fetches()
    monkeypatch.setattr("routes.api_ingress.fetch", stand_in)
    return stand_in


@dataclass(frozen=True)
class Ingress:
    """The service with its providers, and what has come through it."""

    app: App
    sink: Sink

    def post(self, request: SampleRequest) -> TestResponse:
        """The body goes as it is: the client would make a form of an empty one."""
        body = {"input_stream": io.BytesIO(request.body), "content_length": len(request.body)}
        return self.app.http.post(request.path, headers=dict(request.headers), **body)

    def status_of(self, request: SampleRequest) -> str:
        return str(self.post(request).get_json()["status"])

    @property
    def recorded(self) -> list[Entry]:
        return self.app.entries

    @property
    def delivered(self) -> list[dict[str, Any]]:
        return [received.payload for received in self.sink.accepted]


Serve = Callable[..., Ingress]


@pytest.fixture
def serve(start_app: StartApp, sink: Sink) -> Serve:
    """With what mailonce.toml says, at NOW; subjects are not grouped, as many tests send the same one."""

    def opened(toml: str = "", now: datetime = NOW, **settings: Any) -> Ingress:
        given = {"webhook_url": sink.url, "subject_groups": "off"} | settings
        return Ingress(start_app(lambda: now, toml, **given), sink)

    return opened


@pytest.fixture
def serve_once(serve: Serve) -> Serve:
    """One service for all examples of a property."""
    return cache(serve)


def provider_of(toml: str, name: str, fetches: Fetches | None = None) -> AnyProvider:
    """As the service would build it: to write requests with its secret, or to see what it reads out of one."""
    config = Config(providers=tomllib.loads(toml).get("providers", {}))
    return open_providers(config, Surroundings((INGRESS_TOKEN,), fetches or Fetches()))[name]


@cache
def raw(letter: Letter) -> bytes:
    """Written once, as below: property tests ask for it thousands of times."""
    return letter.mime.as_bytes()


@cache
def request_of(toml: str, name: str, letter: Letter = LETTER, now: datetime = NOW) -> SampleRequest:
    """The letter, as the provider with these settings sends it."""
    return provider_of(toml, name).sample(letter, now)


def email_in(provider: AnyProvider, sample: SampleRequest, now: datetime = NOW, *, is_on_disk: bool = False) -> Email:
    """What the provider reads out of its request."""
    body = spooled([sample.body], Spool()) if is_on_disk else sample.body
    request = ProviderRequest(Headers(dict(sample.headers)), lambda: body, now)
    provider.verify(request)
    (email,) = provider.parse(request)
    assert isinstance(email, Email), email
    return email


def with_body(request: SampleRequest, body: bytes) -> SampleRequest:
    return replace(request, body=body)


def with_headers(request: SampleRequest, **changes: str | None) -> SampleRequest:
    """None takes one away."""
    named = {name.replace("_", "-").lower(): value for name, value in changes.items()}
    kept = {name.lower(): value for name, value in request.headers.items()} | named
    return replace(request, headers={name: value for name, value in kept.items() if value is not None})
