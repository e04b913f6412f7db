"""What holds for every provider. The tests of each provider inherit it and say how it differs."""

from __future__ import annotations

import errno
import json
import tempfile
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from werkzeug.test import TestResponse

from orchestrator.config.settings import SettingsError
from orchestrator.pipeline import Pipeline
from routes import connections
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Fetches, Ingress, Serve, request_of, with_body, with_headers
from tests.support.redis_server import free_port

GARBAGE = [b"", b"\x00\xff\xfe garbage", b"{", b"[]", b"null", b"{}", b"--xYzZY--\r\n", b"=&&=;%", b"Subject"]


class ProviderContract:
    """``settings`` accept what ``request`` makes of them; ``rotated`` accept ``other_secret`` as well."""

    name: ClassVar[str]
    settings: ClassVar[str]
    other_secret: ClassVar[str]
    rotated: ClassVar[str]
    without_secret: ClassVar[str]
    complaint: ClassVar[str]
    rejected: ClassVar[int] = 400
    wrong_content_type: ClassVar[int] = 415
    retry: ClassVar[int] = 503
    failure: ClassVar[int] = 500
    probed: ClassVar[int] = 405
    proof_is_in_the_body: ClassVar[bool] = False
    needs_settings: ClassVar[bool] = True

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

    def too_big(self, request: SampleRequest) -> SampleRequest:
        return with_body(request, request.body + b" " * 11_000)

    # Authentication

    def test_an_email_with_a_valid_proof_is_delivered_once(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.settings)
        request = self.request(self.settings)
        answers = [ingress.post(request) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [answer.get_json()["status"] for answer in answers] == ["processed", *["already_processed"] * 2]
        (payload,) = ingress.delivered
        assert (payload["subject"], payload["sender_email"]) == (LETTER.subject, "ada@example.org")
        assert payload["message_id"] == LETTER.message_id
        assert "inbox@in.example.com" in payload["recipients"]

    def test_a_request_without_a_valid_proof_is_refused_whatever_its_body(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.settings)
        self.assert_unauthorized(ingress, ingress.post(self.request(self.other_secret)))
        request = self.without_proof(self.request(self.settings))
        for body in (request.body, *GARBAGE):
            self.assert_unauthorized(ingress, ingress.post(with_body(request, body)))
            xml = with_headers(with_body(request, body), content_type="application/xml")
            self.assert_unauthorized(ingress, ingress.post(xml))

    def test_both_secrets_of_a_rotation_are_accepted(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.rotated)
        letters = [
            replace(LETTER, message_id=f"<{each}@example.org>", date=f"2026-11-16T0{each}:00Z") for each in (1, 2)
        ]
        requests = [self.request(self.settings, letters[0]), self.request(self.other_secret, letters[1])]
        assert [ingress.status_of(each) for each in requests] == ["processed", "processed"]

    def assert_unauthorized(self, ingress: Ingress, answer: TestResponse) -> None:
        assert (answer.status_code, answer.content_type) == (401, "application/json")
        assert answer.get_json()["status"] == "unauthorized"
        assert (ingress.recorded, ingress.delivered) == ([], [])

    # Settings

    def test_a_missing_secret_stops_the_start(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=self.complaint):
            serve(self.without_secret)

    def test_an_unknown_setting_stops_the_start(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=rf"providers\.{self.name}\.singing_key is not one of its settings"):
            serve(f"{self.settings}\nsinging_key = 'x'")

    def test_a_provider_without_settings_is_refused(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        ingress = serve()
        answers = [ingress.post(self.request(self.settings)) for _ in range(2)]
        if not self.needs_settings:
            assert [answer.status_code for answer in answers] == [200, 200]
            return
        assert [answer.status_code for answer in answers] == [404, 404]
        assert f"[providers.{self.name}]" in answers[0].get_json()["error"]
        (line,) = [each for each in caplog.records if f"[providers.{self.name}]" in each.getMessage()]
        assert line.levelname == "WARNING", "once, not for every email: anyone may have sent it"
        probed = ingress.app.http.get(f"/api/ingress/{self.name}")
        assert probed.status_code == (200 if self.probed == 200 else 404)
        assert (ingress.recorded, ingress.delivered) == ([], [])

    # Retries

    def test_without_redis_a_retry_is_requested(self, serve: Serve, fetches: Fetches) -> None:
        away = f"redis://127.0.0.1:{free_port()}/0"
        ingress = serve(self.settings, redis_url=away, on_store_failure="closed")
        self.assert_retry(ingress, ingress.post(self.request(self.settings)))

    def test_without_room_for_a_large_body_a_retry_is_requested(
        self, serve: Serve, fetches: Fetches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        ingress = serve(self.settings)
        monkeypatch.setattr(connections, "PIECE_BYTES", 1)
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
        self.assert_retry(ingress, ingress.post(self.request(self.settings)))

    def assert_retry(self, ingress: Ingress, answer: TestResponse) -> None:
        assert (answer.status_code, answer.get_json()["status"]) == (self.retry, "retry_later")
        assert int(answer.headers["Retry-After"]) > 0
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_after_an_internal_error_a_retry_is_requested(
        self,
        serve: Serve,
        fetches: Fetches,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("inner details")

        ingress = serve(self.settings)
        monkeypatch.setattr(Pipeline, "receive", fail)
        answer = ingress.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (self.failure, "retry_later")
        assert "inner details" not in answer.text
        assert "inner details" in caplog.text

    # Bodies

    def test_a_body_over_the_limit_is_refused(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.settings, max_body_mb=0.01)
        small = replace(LETTER, enclosures=(), message_id="<2@example.org>")
        assert ingress.post(self.request(self.settings, small)).status_code == 200
        answer = ingress.post(self.too_big(self.request(self.settings)))
        assert (answer.status_code, answer.get_json()["status"]) == (413, "invalid")
        assert len(ingress.delivered) == 1

    def test_invalid_bodies_are_not_retried(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        ingress = serve(self.settings)
        for body in GARBAGE:
            caplog.clear()
            answer = ingress.post(self.with_proof_of(body))
            assert (answer.status_code, answer.get_json()["status"]) == (self.rejected, "invalid"), body
            assert answer.get_json()["error"]
            assert "rejected for good" in caplog.text
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_another_content_type_is_refused(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(with_headers(self.request(self.settings), content_type="application/xml"))
        assert answer.status_code == (401 if self.proof_is_in_the_body else self.wrong_content_type)
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_other_methods_are_refused_except_the_probes_of_some_providers(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        path = f"/api/ingress/{self.name}"
        assert [ingress.app.http.open(path, method=each).status_code for each in ("HEAD", "GET")] == [self.probed] * 2
        answer = ingress.app.http.put(path, data=self.request(self.settings).body)
        assert (answer.status_code, answer.get_json()["success"]) == (405, False)
        assert ingress.recorded == []


class BasicAuthContract(ProviderContract):
    """For providers that authenticate with the username and password in their URL."""

    def __init_subclass__(cls) -> None:
        cls.section = getattr(cls, "section", f"[providers.{cls.name}]")
        section = f"{cls.section}\nusername = 'sender'\n"
        cls.settings = f"{section}password = 'first password'"
        cls.other_secret = f"{section}password = 'second password'"
        cls.rotated = f"{section}password = ['first password', 'second password']"
        cls.without_secret = section

    section: ClassVar[str]
    complaint = r"password is needed"
    empty_password_complaint: ClassVar[str] = r"password is needed"
    no_username_complaint: ClassVar[str] = r"username is needed"

    def test_an_empty_password_or_username_stops_the_start(self, serve: Serve) -> None:
        for empty in ("password = ''", "password = []", "password = ['first password', ' ']"):
            with pytest.raises(SettingsError, match=self.empty_password_complaint):
                serve(f"{self.section}\nusername = 'sender'\n{empty}")
        with pytest.raises(SettingsError, match=self.no_username_complaint):
            serve(f"{self.section}\npassword = 'first password'")

    def test_only_the_right_password_is_accepted(self, serve: Serve) -> None:
        ingress = serve(self.settings)
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
            answer = ingress.post(with_headers(self.request(self.settings), authorization=authorization))
            self.assert_unauthorized(ingress, answer)
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")

    def test_the_password_is_checked_before_the_body_is_read(self, serve: Serve) -> None:
        ingress = serve(self.settings, max_body_mb=0.01)
        self.assert_unauthorized(ingress, ingress.post(self.too_big(self.without_proof(self.request(self.settings)))))


def json_with(request: SampleRequest, **changes: Any) -> SampleRequest:
    """The same request with other values at the top of its JSON; None removes one."""
    document = json.loads(request.body) | changes
    return with_body(
        request, json.dumps({name: value for name, value in document.items() if value is not None}).encode()
    )
