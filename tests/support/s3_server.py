"""Amazon S3 on this machine: moto's, and one with configurable responses."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import boto3
import pytest
import requests
from botocore.loaders import JSONFileLoader
from moto.server import ThreadedMotoServer

from tests.support.sink import Reply, Sink

BUCKET = "inbound-emails"


def remember_descriptions() -> None:
    """Each client reads all that Amazon has, megabytes of JSON, and tests make dozens of clients."""
    read = cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda _, path: read(path)


remember_descriptions()


def aim_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator would: boto3 reads the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class S3Server:
    """A bucket that can be filled."""

    def __init__(self, url: str) -> None:
        self.url = url
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        self._client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, contents: bytes, **metadata: str) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=contents, Metadata=metadata)

    def get(self, url: str) -> bytes:
        """As whoever has a presigned address of an object."""
        assert url.startswith(self.url)
        return requests.get(url, timeout=10).content


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextmanager
def s3_that_answers(status: int, headers: dict[str, str], body: bytes = b"") -> Iterator[str]:
    """Its address. Of what its Content-Length announces, only the body is sent, and the line stays open."""
    with Sink(otherwise=Reply(status, headers=headers, body=body)) as sink:
        yield f"http://127.0.0.1:{sink.port}"


def s3_error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    """As S3 writes it, for s3_that_answers."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return status, {"Content-Type": "application/xml", "Content-Length": str(len(body))}, body
