"""What every provider's door does, whoever knocks. Each provider's tests inherit it and say how it differs."""

from __future__ import annotations

import errno
import json
import tempfile
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from werkzeug.test import TestResponse

from orchestrator.config.settings import SettingsError
from orchestrator.intake import Intake
from routes import connections
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Door, Fetches, OpenDoor, request_of, with_body, with_headers
from tests.support.redis_server import free_port

GARBAGE = [b"\x00\xff\xfe garbage", b"{", b"[]", b"null", b"{}", b"--xYzZY--\r\n", b"=&&=;%", b"Subject"]


class ProviderContract:
    """``settings`` opens the door to what ``request`` writes; ``rotated`` lets another secret in beside it."""

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
    shut_by_default: ClassVar[bool] = True

    @pytest.fixture
    def fetches(self, fetches: Fetches) -> Fetches:
        """What the provider needs of the world outside."""
        return fetches

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        return request_of(settings, self.name, letter)

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, authorization=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        """Anything at all in the place of the email, rightly proven."""
        return with_body(self.request(self.settings), body)

    # Who may

    def test_an_email_with_the_right_proof_is_delivered(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings)
        answer = door.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "processed")
        (payload,) = door.delivered
        assert payload["subject"] == LETTER.subject
        assert payload["sender_email"] == "ada@example.org"
        assert payload["message_id"] == LETTER.message_id
        assert "inbox@in.example.com" in payload["recipients"]

    def test_with_the_proof_of_another_secret_nothing_is_taken(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings)
        self.is_unauthorized(door, door.post(self.request(self.other_secret)))

    def test_without_a_proof_nothing_is_taken(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings)
        self.is_unauthorized(door, door.post(self.without_proof(self.request(self.settings))))

    def test_while_a_secret_is_rotated_both_are_taken(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.rotated)
        letters = [
            replace(LETTER, message_id=f"<{each}@example.org>", date=f"2026-11-16T0{each}:00Z") for each in (1, 2)
        ]
        requests = [self.request(self.settings, letters[0]), self.request(self.other_secret, letters[1])]
        assert [door.status_of(each) for each in requests] == ["processed", "processed"]

    @pytest.mark.parametrize("body", [b"", *GARBAGE])
    def test_a_stranger_never_learns_what_is_wrong_with_the_body(
        self, open_door: OpenDoor, fetches: Fetches, body: bytes
    ) -> None:
        door = open_door(self.settings)
        request = with_body(self.without_proof(self.request(self.settings)), body)
        self.is_unauthorized(door, door.post(request))
        self.is_unauthorized(door, door.post(with_headers(request, content_type="application/xml")))

    def is_unauthorized(self, door: Door, answer: TestResponse) -> None:
        assert (answer.status_code, answer.content_type) == (401, "application/json")
        assert answer.get_json()["status"] == "unauthorized"
        assert (door.recorded, door.delivered) == ([], [])

    # Set up or not

    def test_without_its_secret_the_start_fails_and_says_what_is_missing(self, open_door: OpenDoor) -> None:
        with pytest.raises(SettingsError, match=self.complaint):
            open_door(self.without_secret)

    def test_a_setting_it_does_not_have_fails_the_start(self, open_door: OpenDoor) -> None:
        with pytest.raises(SettingsError, match=rf"providers\.{self.name}\.singing_key is not one of its settings"):
            open_door(f"{self.settings}\nsinging_key = 'x'")

    def test_not_set_up_it_is_shut_and_says_what_is_missing(
        self, open_door: OpenDoor, caplog: pytest.LogCaptureFixture
    ) -> None:
        door = open_door()
        answers = [door.post(self.request(self.settings)) for _ in range(2)]
        if not self.shut_by_default:
            assert [answer.status_code for answer in answers] == [200, 200]
            return
        assert [answer.status_code for answer in answers] == [404, 404]
        assert f"[providers.{self.name}]" in answers[0].get_json()["error"]
        (line,) = [each for each in caplog.records if f"[providers.{self.name}]" in each.getMessage()]
        assert line.levelname == "WARNING", "said once, not for every email; a stranger may have sent it"
        looked = door.app.http.get(f"/api/ingress/{self.name}")
        assert looked.status_code == (200 if self.probed == 200 else 404)
        assert (door.recorded, door.delivered) == ([], [])

    # Once

    def test_the_same_request_again_delivers_nothing_again(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings)
        request = self.request(self.settings)
        answers = [door.post(request) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [answer.get_json()["status"] for answer in answers] == ["processed", *["already_processed"] * 2]
        assert len(door.delivered) == 1

    def test_what_cannot_be_kept_for_now_is_asked_for_again(self, open_door: OpenDoor, fetches: Fetches) -> None:
        away = f"redis://127.0.0.1:{free_port()}/0"
        door = open_door(self.settings, redis_url=away, on_store_failure="closed")
        answer = door.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (self.retry, "retry_later")
        assert int(answer.headers["Retry-After"]) > 0
        assert door.delivered == []

    def test_a_large_body_for_which_there_is_no_room_is_asked_for_again(
        self, open_door: OpenDoor, fetches: Fetches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        door = open_door(self.settings)
        monkeypatch.setattr(connections, "PIECE_BYTES", 1)
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
        answer = door.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (self.retry, "retry_later")
        assert int(answer.headers["Retry-After"]) > 0
        assert (door.recorded, door.delivered) == ([], [])

    def test_after_an_error_of_our_own_the_provider_comes_back(
        self, open_door: OpenDoor, fetches: Fetches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("inner details")

        door = open_door(self.settings)
        monkeypatch.setattr(Intake, "receive", fail)
        answer = door.post(self.request(self.settings))
        assert (answer.status_code, answer.get_json()["status"]) == (self.failure, "retry_later")
        assert "inner details" not in answer.text
        assert "inner details" in caplog.text

    # What it takes

    def test_a_body_over_the_limit_is_refused(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings, max_body_mb=0.01)
        small = replace(LETTER, enclosures=(), message_id="<2@example.org>")
        assert door.post(self.request(self.settings, small)).status_code == 200
        answer = door.post(self.too_big(self.request(self.settings)))
        assert (answer.status_code, answer.get_json()["status"]) == (413, "invalid")
        assert len(door.delivered) == 1

    def too_big(self, request: SampleRequest) -> SampleRequest:
        return with_body(request, request.body + b" " * 11_000)

    @pytest.mark.parametrize("body", [b"", *GARBAGE])
    def test_garbage_is_rejected_for_good(
        self, open_door: OpenDoor, fetches: Fetches, body: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        door = open_door(self.settings)
        answer = door.post(self.with_proof_of(body))
        assert (answer.status_code, answer.get_json()["status"]) == (self.rejected, "invalid")
        assert answer.get_json()["error"]
        assert "rejected for good" in caplog.text
        assert (door.recorded, door.delivered) == ([], [])

    def test_another_content_type_is_rejected_for_good(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(self.settings)
        answer = door.post(with_headers(self.request(self.settings), content_type="application/xml"))
        assert answer.status_code == (401 if self.proof_is_in_the_body else self.wrong_content_type)
        assert (door.recorded, door.delivered) == ([], [])

    @pytest.mark.parametrize("method", ["HEAD", "GET"])
    def test_a_probe_is_answered_where_providers_send_one(self, open_door: OpenDoor, method: str) -> None:
        door = open_door(self.settings)
        answer = door.app.http.open(f"/api/ingress/{self.name}", method=method)
        assert answer.status_code == self.probed
        assert door.recorded == []

    def test_other_methods_are_refused(self, open_door: OpenDoor) -> None:
        door = open_door(self.settings)
        answer = door.app.http.put(f"/api/ingress/{self.name}", data=self.request(self.settings).body)
        assert (answer.status_code, answer.get_json()["success"]) == (405, False)


class BasicAuthContract(ProviderContract):
    """Of those that are told apart from strangers by the username and password in their URL."""

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

    @pytest.mark.parametrize("empty", ["password = ''", "password = []", "password = ['first password', ' ']"])
    def test_an_empty_password_opens_nothing(self, open_door: OpenDoor, empty: str) -> None:
        with pytest.raises(SettingsError, match=self.empty_password_complaint):
            open_door(f"{self.section}\nusername = 'sender'\n{empty}")

    def test_a_username_is_needed(self, open_door: OpenDoor) -> None:
        with pytest.raises(SettingsError, match=self.no_username_complaint):
            open_door(f"{self.section}\npassword = 'first password'")

    def test_the_password_is_asked_for(self, open_door: OpenDoor) -> None:
        door = open_door(self.settings)
        answer = door.post(self.without_proof(self.request(self.settings)))
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")

    @pytest.mark.parametrize(
        "authorization",
        [
            "Basic",
            "Basic ",
            "Basic !!!",
            "Basic c2VuZGVyOg==",
            "Basic OmZpcnN0IHBhc3N3b3Jk",
            "Bearer c2VuZGVyOmZpcnN0IHBhc3N3b3Jk",
            "c2VuZGVyOmZpcnN0IHBhc3N3b3Jk",
            "Basic \xe9\xff",
            "Basic c2VuZGVyOmZpcnN0IHBhc3N3b3JkeA==",
        ],
    )
    def test_anything_but_the_right_password_is_refused(self, open_door: OpenDoor, authorization: str) -> None:
        door = open_door(self.settings)
        request = with_headers(self.request(self.settings), authorization=authorization)
        self.is_unauthorized(door, door.post(request))

    def test_the_proof_is_asked_for_before_the_body_is_read(self, open_door: OpenDoor) -> None:
        door = open_door(self.settings, max_body_mb=0.01)
        self.is_unauthorized(door, door.post(self.too_big(self.without_proof(self.request(self.settings)))))


def json_with(request: SampleRequest, **changes: Any) -> SampleRequest:
    """The same request with other values at the top of its JSON; None takes one away."""
    document = json.loads(request.body) | changes
    return with_body(
        request, json.dumps({name: value for name, value in document.items() if value is not None}).encode()
    )
