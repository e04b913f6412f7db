"""orchestrator/delivery/s3.py against an S3 on this machine."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed
from orchestrator.delivery.s3 import S3
from tests.support.s3_server import BUCKET, S3Server, aim_at, s3_server, s3_that_answers

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


def failure(s3: S3, key: str, bucket: str = BUCKET, max_bytes: int = 10**6) -> tuple[bool, str]:
    """Whether it is permanent, and the message."""
    with pytest.raises(FetchFailed) as raised:
        s3.read(bucket, key, max_bytes)
    return raised.value.permanent, str(raised.value)


def test_an_object_is_read_even_without_a_region(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    aim_at(server.url, monkeypatch)
    assert S3().read(BUCKET, "inbox/email", len(CONTENTS)) == CONTENTS
    monkeypatch.delenv("AWS_REGION")
    assert S3().read(BUCKET, "inbox/email", len(CONTENTS)) == CONTENTS


@pytest.mark.parametrize(
    ("bucket", "key", "max_bytes", "message"),
    [
        (BUCKET, "inbox/gone", 10**6, "not in S3"),
        ("no-such-bucket", "inbox/email", 10**6, "not in S3"),
        (BUCKET, "inbox/email", len(CONTENTS) - 1, f"larger than {len(CONTENTS) - 1} bytes"),
        (BUCKET, "encrypted", 10**6, "switch Encrypt Message off"),
    ],
)
def test_failures_that_are_permanent(s3: S3, bucket: str, key: str, max_bytes: int, message: str) -> None:
    permanent, shown = failure(s3, key, bucket, max_bytes)
    assert permanent and message in shown


def test_an_object_that_is_too_large_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_that_answers(200, {"Content-Length": str(10**12)}) as url:
        aim_at(url, monkeypatch)
        assert failure(S3(), "any")[0], "its contents never came"


def test_an_unreachable_s3_is_asked_again(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        aim_at(f"http://127.0.0.1:{nobody_listens.getsockname()[1]}", monkeypatch)
        assert failure(S3(), "any") == (False, "S3: EndpointConnectionError")
    aim_at(server.url, monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert failure(S3(), "inbox/email") == (False, "S3: NoCredentialsError")


@pytest.mark.parametrize(("name", "value"), [("AWS_ENDPOINT_URL_S3", "no address"), ("AWS_PROFILE", "unheard-of")])
def test_an_invalid_environment_stops_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=rf"AWS_.*{value}"):
        S3()
