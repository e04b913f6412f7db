"""What holds for every provider. The tests of each provider inherit it and say how it differs."""

import errno
import json
import random
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any, ClassVar
from unittest.mock import Mock

import hypothesis
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from deduplication.email import Email
from deduplication.spool import LARGE_BYTES, Blob, read_all
from orchestrator.config.settings import SettingsError
from orchestrator.pipeline import Pipeline
from routes import connections
from routes.providers.registry import TYPES
from routes.providers.samples import Enclosure, Letter, SampleRequest
from tests.routes.conftest import bearer
from tests.routes.providers.conftest import (
    LETTER,
    NOW,
    Fetches,
    Ingress,
    Serve,
    email_in,
    provider_of,
    request_of,
    with_body,
    with_headers,
)
from tests.support.redis_server import free_port
from tests.support.server import ADMIN_TOKEN
from tests.support.surroundings import ROOT

DOCUMENTED = ROOT / "tests/fixtures/providers"  # requests as the providers' documentation has them
EXPECTED: dict[str, dict[str, Any]] = json.loads((DOCUMENTED / "expected.json").read_text())
ODD: list[Any] = [None, 5, "x", {}, [], [5], [[]], [{}], {"a": 5}, {"spf": 5}, {"messageId": 5}, {"score": {}}]
ODD += [{"to": 5, "recipients": {"a": "b"}}, {"spamVerdict": "PASS"}, {"a": {"content": 5, "name": []}}]
ODD += [[{"Name": 5, "Content": "!", "ContentType": []}], [{"ContentRef": "Attachment9"}], [{"ContentRef": 5}]]
GARBAGE = [b"", b"\x00\xff\xfe garbage", b"{", b"[]", b"null", b"{}", b"--xYzZY--\r\n", b"=&&=;%", b"Subject"]
PIECES = [
    b"--xYzZY", b"--xYzZY--", b"\r\n", b"\n\n", b'Content-Disposition: form-data; name="headers"', b"=", b"&", b"%",
    b"Content-Type: multipart/mixed; boundary=x", b"--x", b"Subject: ", b"From: a@b.org", b"{", b'"', b":", b"\0\xff",
]  # fmt: skip
HOSTILE = [10**400, -(10**400), 1e300, "http://[::1", "http://℀.com/a", "\ud800", "a\n\0b", "\u0301" * 50, "é" * 70_000]
texts = st.text(st.characters(), max_size=20)  # half surrogate pairs included
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.sampled_from(HOSTILE)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
pieces = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=30).map(b"".join)
bodies = st.binary(max_size=300) | pieces | values.map(lambda value: json.dumps(value).encode())
QUIETLY = [*HealthCheck]  # one service for all examples, and one test for many classes


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def assert_valid(answer: TestResponse, retry: int) -> None:
    """A JSON answer below 500, or the provider's own "try again", which is not to cover up an error of ours."""
    assert "internal error" not in answer.text
    assert answer.status_code < 500 or answer.status_code == retry, answer.text
    assert answer.content_type == "application/json"
    assert isinstance(answer.get_json()["success"], bool)


class ProviderContract:
    """``settings`` accept what ``request`` makes of them; ``rotated`` accept ``other_secret`` as well.

    ``invalid`` are settings that stop the start, each with the error.
    """

    name: ClassVar[str]
    settings: ClassVar[str]
    other_secret: ClassVar[str]
    rotated: ClassVar[str]
    invalid: ClassVar[dict[str, str]]
    rejected: ClassVar[int] = 400
    too_large: ClassVar[int] = 413
    wrong_content_type: ClassVar[int] = 415
    retry: ClassVar[int] = 503
    failure: ClassVar[int] = 500
    probed: ClassVar[int] = 405
    padding: ClassVar[bytes] = b" "
    leaves_files_on_disk: ClassVar[bool] = True

    @pytest.fixture
    def fetches(self, fetches: Fetches) -> Fetches:
        """The pages that the provider needs."""
        return fetches

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        return request_of(settings, self.name, letter)

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, authorization=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        """Any body in place of the email, with a valid proof."""
        return with_body(self.request(self.settings), body)

    def words(self) -> bytes:
        """What ``with_proof_of`` takes for a valid email."""
        return self.request(self.settings).body

    def read(self, request: SampleRequest) -> Email:
        return email_in(provider_of(self.settings, self.name), request)

    def ignored(self) -> Iterable[SampleRequest]:
        """Requests with a valid proof and without an email, such as its other webhooks."""
        return ()

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        """Requests with a valid proof that can never be accepted, and the field that is named."""
        return ()

    def assert_unauthorized(self, ingress: Ingress, answer: TestResponse) -> None:
        assert (answer.status_code, answer.content_type) == (401, "application/json")
        assert answer.get_json()["status"] == "unauthorized"
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def assert_ignored(self, ingress: Ingress, request: SampleRequest) -> None:
        answer = ingress.post(request)
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_a_request_without_a_valid_proof_is_refused_whatever_its_body(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.settings)
        self.assert_unauthorized(ingress, ingress.post(self.request(self.other_secret)))
        request, texts = self.without_proof(self.request(self.settings)), set()
        xml = with_headers(request, content_type="application/xml")
        for sent, body in product((request, xml), (request.body, *GARBAGE)):
            answer = ingress.post(with_body(sent, body))
            self.assert_unauthorized(ingress, answer)
            texts.add(answer.text)
        assert len(texts) == 1, "it helps no one to guess"

    def test_both_secrets_of_a_rotation_are_accepted(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.rotated)
        letters = [replace(LETTER, message_id=f"<{n}@example.org>", date=f"2026-11-16T0{n}:00Z") for n in (1, 2)]
        requests = [self.request(self.settings, letters[0]), self.request(self.other_secret, letters[1])]
        assert [ingress.status_of(each) for each in requests] == ["processed", "processed"]

    def test_invalid_settings_stop_the_start(self, serve: Serve) -> None:
        typo = rf"providers\.{self.name}\.singing_key is unknown"
        for settings, complaint in {**self.invalid, f"{self.settings}\nsinging_key = 'x'": typo}.items():
            with pytest.raises(SettingsError, match=complaint):
                serve(settings)

    def test_a_provider_without_settings_is_refused(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        ingress = serve()
        answers = [ingress.post(self.request(self.settings)) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert f"[providers.{self.name}]" in answers[0].get_json()["error"]
        (line,) = [each for each in caplog.records if f"[providers.{self.name}]" in each.getMessage()]
        assert line.levelname == "WARNING", "once, not for every email: anyone may have sent it"
        probed = ingress.app.http.get(f"/api/ingress/{self.name}")
        assert probed.status_code == (200 if self.probed == 200 else 404)
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_without_redis_a_retry_is_requested(self, serve: Serve, fetches: Fetches) -> None:
        away = f"redis://127.0.0.1:{free_port()}/0"
        ingress = serve(self.settings, redis_url=away, on_store_failure="closed")
        self.assert_retry(ingress, self.retry)

    def test_without_room_or_after_an_internal_error_a_retry_is_requested(
        self, serve: Serve, fetches: Fetches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        no_room = OSError(errno.ENOSPC, "No space left on device")
        ingress = serve(self.settings)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(connections, "PIECE_BYTES", 1)
            full_disk.setattr(tempfile, "TemporaryFile", Mock(side_effect=no_room))
            self.assert_retry(ingress, self.retry)
        monkeypatch.setattr(Pipeline, "receive", Mock(side_effect=RuntimeError("inner details")))
        assert "inner details" not in self.assert_retry(ingress, self.failure).text
        assert "inner details" in caplog.text

    def assert_retry(self, ingress: Ingress, http_status: int) -> TestResponse:
        answer = ingress.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (http_status, "retry_later")
        assert int(answer.headers["Retry-After"]) > 0
        assert (ingress.recorded, ingress.delivered) == ([], [])
        return answer

    def test_a_large_request_is_read_from_the_disk_and_its_files_stay_there(self, fetches: Fetches) -> None:
        """Whatever an email has in it, as if it were in memory; texts with all kinds of line ends."""
        noise = random.Random(1).randbytes(300_000)  # noqa: S311
        files = [
            ("a.bin", b"\0" + noise),
            ("b.txt", b"a\r\nb\n\r\n" * 30_000),
            ("c.txt", b"\r" * 100_000),
            ("d.bin", b"d"),
        ]
        enclosures = tuple(Enclosure(name, "application/octet-stream", content) for name, content in files)
        letter = replace(LETTER, html="<p>é &amp; \\u00e9 %41</p>" * 9_000, enclosures=enclosures)
        provider, sample = provider_of(self.settings, self.name, fetches), self.request(self.settings, letter)
        in_memory, on_disk = (email_in(provider, sample, is_on_disk=is_on_disk) for is_on_disk in (False, True))
        assert on_disk == in_memory
        for one, other in zip(in_memory.attachments, on_disk.attachments, strict=True):
            is_large = self.leaves_files_on_disk and one.data is not None and one.size_bytes > LARGE_BYTES
            assert isinstance(other.data, Blob) == is_large
            assert one.data is None or read_all(other.data or b"") == one.data
        assert in_memory.original is None or read_all(on_disk.original or b"") == in_memory.original

    def test_a_body_over_the_limit_is_refused_in_the_providers_way_and_noted(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        ingress = serve(self.settings, max_body_mb=0.01)
        small = replace(LETTER, enclosures=(), message_id="<2@example.org>")
        assert ingress.post(self.request(self.settings, small)).status_code == 200
        answer = ingress.post(self.with_proof_of(self.request(self.settings).body + self.padding * 11_000))
        assert (answer.status_code, answer.get_json()["status"]) == (self.too_large, "invalid")
        assert "MAX_BODY_MB" in answer.get_json()["error"]
        assert f"provider {self.name}: rejected for good" in caplog.text
        ingress.app.service.meter.flush()
        figures = ingress.app.http.get("/metrics", headers=bearer(ADMIN_TOKEN)).text
        assert f'mailonce_emails_total{{provider="{self.name}",status="invalid"}} 1.0' in figures
        assert len(ingress.delivered) == 1

    def test_invalid_bodies_and_content_types_are_not_retried(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        ingress = serve(self.settings)
        for body in GARBAGE:
            caplog.clear()
            answer = ingress.post(self.with_proof_of(body))
            assert (answer.status_code, answer.get_json()["status"]) == (self.rejected, "invalid"), body
            assert answer.get_json()["error"]
            assert "rejected for good" in caplog.text
        answer = ingress.post(with_headers(self.request(self.settings), content_type="application/xml"))
        assert answer.status_code == self.wrong_content_type
        if answer.status_code != 200:
            assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_requests_without_an_email_are_ignored_and_invalid_ones_rejected(
        self, serve: Serve, fetches: Fetches
    ) -> None:
        ingress = serve(self.settings)
        for request in self.ignored():
            self.assert_ignored(ingress, request)
        for request, field in self.invalid_requests():
            answer = ingress.post(request)
            assert (answer.status_code, answer.get_json()["status"]) == (self.rejected, "invalid"), request.body
            assert answer.get_json().get("field") == field
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_other_methods_are_refused_except_the_probes_of_some_providers(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        path = f"/api/ingress/{self.name}"
        assert [ingress.app.http.open(path, method=each).status_code for each in ("HEAD", "GET")] == [self.probed] * 2
        answer = ingress.app.http.put(path, data=self.request(self.settings).body)
        assert (answer.status_code, answer.get_json()["success"]) == (405, False)
        assert ingress.recorded == []

    @hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=QUIETLY)
    @given(data=st.data())
    @example(data=b"[" * 100_000)
    @example(data=b'{"a":' * 5_000)
    @example(data=b"\x00" * 5_000)
    def test_whatever_the_provider_itself_sends_is_answered(
        self, serve_once: Serve, fetches: Fetches, data: Any
    ) -> None:
        """Any bytes, and its own JSON with any value in any place."""
        try:
            document = json.loads(self.words())
        except ValueError:
            document = None
        if isinstance(data, bytes):
            words = data
        elif document is None or data.draw(st.integers(0, 3)) == 0:
            words = data.draw(bodies)
        else:
            place = data.draw(st.sampled_from(places(document)))
            words = json.dumps(changed(document, place, data.draw(values))).encode()
        answer = serve_once(self.settings).post(self.with_proof_of(words))
        assert_valid(answer, self.retry)
        assert answer.status_code != 401, "the request is not proven, so nothing was read"

    def test_a_valid_email_with_that_proof_reaches_the_parser(self, serve: Serve, fetches: Fetches) -> None:
        assert serve(self.settings).post(self.with_proof_of(self.words())).status_code == 200


class DocumentedContract(ProviderContract):
    """For providers with an example of a request in tests/fixtures/providers, as their documentation has it.

    expected.json has the fields of the email that is read from it; an attachment is its name, type, size and SHA-256.
    ``optional`` names parts of the request that may be anything.
    """

    optional: ClassVar[tuple[str, ...]] = ()

    @property
    def documented_email(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((DOCUMENTED / f"{self.name}.json").read_text())
        return document

    def documented(self, **changes: Any) -> SampleRequest:
        """The documented request with other values at the top; None removes one."""
        return json_with(with_body(self.request(self.settings), json.dumps(self.documented_email).encode()), **changes)

    def words(self) -> bytes:
        return self.documented().body

    def test_the_documented_email_is_parsed(self, fetches: Fetches) -> None:
        email = email_in(provider_of(self.settings, self.name, fetches), self.documented())
        files = [(file.name, file.content_type, file.size_bytes, file.sha256) for file in email.attachments]
        expected = EXPECTED[self.name]
        read = {part: getattr(email, part) for part in expected} | {"attachments": files}
        assert json.loads(json.dumps(read)) == expected

    def test_invalid_optional_parts_do_not_reject_the_email(self, fetches: Fetches) -> None:
        provider = provider_of(self.settings, self.name, fetches)
        for field, odd in product(self.optional, ODD):
            assert email_in(provider, self.documented(**{field: odd})).sender, (field, odd)


class TimedContract(ProviderContract):
    """For providers that sign a time; ``fresh_for`` is how old a request may be, unless freshness_hours says so."""

    fresh_for: ClassVar[timedelta]

    def request_at(self, moment: datetime) -> SampleRequest:
        return request_of(self.settings, self.name, now=moment)

    def test_a_signed_request_is_accepted_until_its_last_retry_or_as_long_as_set(self, serve: Serve) -> None:
        minute = timedelta(minutes=1)
        ages = {self.fresh_for - minute: 200, self.fresh_for + minute: 401, -4 * minute: 200, -6 * minute: 401}
        ingress = serve(self.settings)
        assert {age: ingress.post(self.request_at(NOW - age)).status_code for age in ages} == ages
        if "freshness_hours" in TYPES[self.name].options_type.model_fields:
            ingress = serve(f"{self.settings}\nfreshness_hours = 1")
            assert [ingress.post(self.request_at(NOW - age * minute)).status_code for age in (59, 61)] == [200, 401]


class BasicAuthContract(ProviderContract):
    """For providers that authenticate with the username and password in their URL."""

    section: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        section = cls.section or f"[providers.{cls.name}]"
        user = f"{section}\nusername = 'sender'"
        cls.settings = f"{user}\npassword = 'first password'"
        cls.other_secret = f"{user}\npassword = 'second password'"
        cls.rotated = f"{user}\npassword = ['first password', 'second password']"
        empty = ("''", "[]", "['first password', ' ']")
        cls.invalid = {
            **{f"{user}\npassword = {each}": r"password must not be empty" for each in empty},
            user: r"password is required|needs username and password together",
            f"{section}\npassword = 'x'": r"username is required|needs username and password together",
        }

    def test_only_the_right_password_is_accepted_before_the_body_is_read(self, serve: Serve) -> None:
        ingress = serve(self.settings, max_body_mb=0.01)
        request = self.with_proof_of(self.request(self.settings).body + self.padding * 11_000)
        for authorization in (
            None,
            "Basic",
            "Basic ",
            "Basic !!!",
            "Basic c2VuZGVyOg==",
            "Basic OmZpcnN0IHBhc3N3b3Jk",
            "Bearer c2VuZGVyOmZpcnN0IHBhc3N3b3Jk",
            "c2VuZGVyOmZpcnN0IHBhc3N3b3Jk",
            "Basic \xe9\xff",
            "Basic c2VuZGVyOmZpcnN0IHBhc3N3b3JkeA==",
        ):
            answer = ingress.post(with_headers(request, authorization=authorization))
            self.assert_unauthorized(ingress, answer)
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")


def json_with(request: SampleRequest, **changes: Any) -> SampleRequest:
    """The same request with other values at the top of its JSON; None removes one."""
    document = json.loads(request.body) | changes
    kept = {name: value for name, value in document.items() if value is not None}
    return with_body(request, json.dumps(kept).encode())
