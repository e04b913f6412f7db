"""Amazon S3: reads emails that SES has put there, and keeps files behind links. Needs the extra "s3" or "ses".

Region, credentials and endpoint come from boto3's own environment variables, AWS_...
"""

from __future__ import annotations

import io
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deduplication.spool import CHUNK_BYTES, Blob, Content, collected
from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed
from orchestrator.files import UNAVAILABLE, Gone, NotStored, disposition

log = logging.getLogger(__name__)

PRESIGNED_S = 300
GONE = ("NoSuchKey", "NoSuchBucket", "404")
ENCRYPTED_BY_SES = "x-amz-key-v2"
# SNS waits 15 s for the whole answer, and the destinations need their time too.
ONE_TRY = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}, signature_version="s3v4")


def _connect() -> Any:
    """One for all threads of a process. Raises SettingsError if the environment is wrong."""
    try:
        return boto3.Session().client("s3", config=ONE_TRY)
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(f"the AWS_... variables must be valid for boto3; {error}") from error


class _Reader(io.RawIOBase):
    """A blob as the client wants it: it is read twice, for its digest and to send it."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, len(self._blob))[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._blob.read(self._position, self._position + len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class Bucket:
    """Where FILES_URL keeps files, under the name of the machine that stored them, which alone deletes them."""

    is_shared = True

    def __init__(self, url: str, machine: str) -> None:
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._machine = machine
        self._client = _connect()

    def put(self, key: str, content: Content, size_bytes: int) -> None:
        body = io.BufferedReader(_Reader(content)) if isinstance(content, Blob) else content
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._key(f"{self._machine}/{key}"), Body=body)
        except (ClientError, BotoCoreError, OSError) as error:
            log.error("S3: a file cannot be stored: %s", error)
            raise NotStored(UNAVAILABLE) from error

    def delete(self, key: str) -> None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._key(f"{self._machine}/{key}"))
        except (ClientError, BotoCoreError) as error:
            raise OSError(f"S3: {error}") from error

    def url(self, key: str, name: str) -> str:
        """A short-lived address of an object, for a file of that name. Raises Gone, and OSError while S3 is away."""
        place = {"Bucket": self._bucket, "Key": self._key(key)}
        answer = {"ResponseContentDisposition": disposition(name)}
        try:
            self._client.head_object(**place)
            return str(self._client.generate_presigned_url("get_object", {**place, **answer}, PRESIGNED_S))
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in GONE:
                raise Gone from error
            raise OSError(f"S3: {error}") from error
        except BotoCoreError as error:
            raise OSError(f"S3: {error}") from error

    def _key(self, key: str) -> str:
        return f"{self._prefix}{key}"


class S3:
    """``folder``: for large objects."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._client = _connect()

    def read(self, bucket: str, key: str, max_bytes: int) -> Content:
        """Raises FetchFailed. An object that is too large is not downloaded: its size comes before its contents."""
        try:
            found = self._client.get_object(Bucket=bucket, Key=key)
            with closing(found["Body"]) as contents:
                if found["ContentLength"] > max_bytes:
                    raise FetchFailed(f"the object in S3 is larger than {max_bytes} bytes", permanent=True)
                if ENCRYPTED_BY_SES in found["Metadata"]:
                    advice = "switch Encrypt Message off in the rule's S3 action (encryption by the bucket is fine)"
                    raise FetchFailed(f"the object in S3 is encrypted by SES: {advice}", permanent=True)
                return collected(contents.iter_chunks(CHUNK_BYTES), self._folder)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in GONE:
                raise FetchFailed("the object is not in S3, or no longer", permanent=True) from error
            raise FetchFailed(f"S3 answered {code}") from error
        except (BotoCoreError, OSError) as error:
            raise FetchFailed(f"S3: {type(error).__name__}") from error
