"""orchestrator/delivery/s3.py against an S3 on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed
from orchestrator.delivery.s3 import S3
from tests.support.s3_server import BUCKET, S3Server, aim_at, s3_error, s3_server, s3_that_answers

CONTENTS = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.put("inbox/email", CONTENTS)
        running.put("encrypted", b"\x00\x01", **{"x-amz-key-v2": "AQIDAH", "x-amz-cek-alg": "AES/GCM/NoPadding"})
        yield running


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3:
    aim_at(server.url, monkeypatch)
    return S3()


def failure(s3: S3, key: str, bucket: str = BUCKET, max_bytes: int = 10**6) -> FetchFailed:
    with pytest.raises(FetchFailed) as raised:
        s3.read(bucket, key, max_bytes)
    return raised.value


def test_an_object_is_read_byte_for_byte(s3: S3) -> None:
    assert s3.read(BUCKET, "inbox/email", len(CONTENTS)) == CONTENTS


def test_without_a_region_too(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    aim_at(server.url, monkeypatch)
    monkeypatch.delenv("AWS_REGION")
    assert S3().read(BUCKET, "inbox/email", len(CONTENTS)) == CONTENTS


def test_what_is_not_there_will_not_be_there_later(s3: S3) -> None:
    for missing in (failure(s3, "inbox/gone"), failure(s3, "inbox/email", bucket="no-such-bucket")):
        assert missing.permanent
        assert "not in S3" in str(missing)


def test_one_byte_more_than_may_be_is_too_big(s3: S3) -> None:
    too_big = failure(s3, "inbox/email", max_bytes=len(CONTENTS) - 1)
    assert too_big.permanent
    assert f"larger than {len(CONTENTS) - 1} bytes" in str(too_big)


def test_of_what_is_too_big_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_that_answers(200, {"Content-Length": str(10**12)}) as url:
        aim_at(url, monkeypatch)
        assert failure(S3(), "any").permanent, "its contents never came"


def test_what_ses_has_encrypted_itself_is_told_apart(s3: S3) -> None:
    encrypted = failure(s3, "encrypted")
    assert encrypted.permanent
    assert "Encrypt Message" in str(encrypted)


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (500, "InternalError"), (503, "SlowDown")]
)
def test_what_s3_or_a_setting_may_yet_cure_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    with s3_that_answers(*s3_error(status, code)) as url:
        aim_at(url, monkeypatch)
        refused = failure(S3(), "any")
    assert not refused.permanent
    assert code in str(refused)


def test_so_is_an_s3_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        aim_at(f"http://127.0.0.1:{taken.getsockname()[1]}", monkeypatch)
        away = failure(S3(), "any")
    assert not away.permanent
    assert "EndpointConnectionError" in str(away)


def test_so_are_credentials_that_are_not_there_yet(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    aim_at(server.url, monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nowhere = str(tmp_path_factory.mktemp("aws") / "none")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, nowhere)
    absent = failure(S3(), "inbox/email")
    assert not absent.permanent
    assert "NoCredentialsError" in str(absent)


@pytest.mark.parametrize(("name", "value"), [("AWS_ENDPOINT_URL_S3", "no address"), ("AWS_PROFILE", "unheard-of")])
def test_an_environment_that_cannot_work_is_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=rf"AWS_.*{value}"):
        S3()
