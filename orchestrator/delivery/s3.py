"""Amazon S3: reads emails that SES has put there, and keeps files behind links. Needs the extra "s3" or "ses".

Region, credentials and endpoint come from boto3's own environment variables, AWS_...
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deduplication.spool import CHUNK_BYTES, LARGE_BYTES, Content, chunks_of, collected
from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed

PRESIGNED_S = 300
GONE = ("NoSuchKey", "NoSuchBucket", "404")
ENCRYPTED_BY_SES = "x-amz-key-v2"
# SNS waits 15 s for the whole answer, and the destinations need their time too.
ONE_TRY = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}, signature_version="s3v4")


class S3:
    """One client for all threads of a process. ``folder``: for large objects."""

    def __init__(self, folder: Path | None = None) -> None:
        """Raises SettingsError if the environment is wrong."""
        self._folder = folder
        try:
            self._client = boto3.Session().client("s3", config=ONE_TRY)
        except (BotoCoreError, ValueError) as error:
            raise SettingsError(f"the AWS_... variables must be valid for boto3; {error}") from error

    def read(self, bucket: str, key: str, max_bytes: int) -> Content:
        """Raises FetchFailed. An object that is too large is not downloaded: its size comes before its contents."""
        try:
            with _translating_errors():
                found = self._client.get_object(Bucket=bucket, Key=key)
                with closing(found["Body"]) as contents:
                    if found["ContentLength"] > max_bytes:
                        raise FetchFailed(f"the object in S3 is larger than {max_bytes} bytes", permanent=True)
                    if ENCRYPTED_BY_SES in found["Metadata"]:
                        advice = "switch Encrypt Message off in the rule's S3 action (encryption by the bucket is fine)"
                        raise FetchFailed(f"the object in S3 is encrypted by SES: {advice}", permanent=True)
                    return collected(contents.iter_chunks(CHUNK_BYTES), self._folder)
        except FileNotFoundError as error:
            raise FetchFailed("the object is not in S3, or no longer", permanent=True) from error
        except OSError as error:
            raise FetchFailed(str(error)) from error


class Bucket(S3):
    """Where FILES_URL keeps files, under the name of the ``machine`` that stored them, which alone deletes them. Raises
    OSError while S3 cannot do what it is asked to."""

    def __init__(self, url: str, machine: str, folder: Path) -> None:
        super().__init__(folder)
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._machine = machine

    def put(self, key: str, content: Content) -> None:
        # A file, because the client reads it twice: for its digest, and to send it.
        with _translating_errors(), SpooledTemporaryFile(LARGE_BYTES, dir=str(self._folder)) as file:
            file.writelines(chunks_of(content))
            file.seek(0)
            self._client.put_object(**self._at(self._machine, key), Body=file)

    def delete(self, key: str) -> None:
        with _translating_errors():
            self._client.delete_object(**self._at(self._machine, key))

    def url(self, machine: str, key: str, disposition: str) -> str:
        """A short-lived address of a file. Raises FileNotFoundError if it is not there."""
        place = self._at(machine, key)
        with _translating_errors():
            self._client.head_object(**place)
            answer = {**place, "ResponseContentDisposition": disposition}
            return str(self._client.generate_presigned_url("get_object", answer, PRESIGNED_S))

    def _at(self, machine: str, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{machine}/{key}"}


@contextmanager
def _translating_errors() -> Iterator[None]:
    """Raises FileNotFoundError if S3 does not have the object, and OSError if anything else goes wrong."""
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        kind = FileNotFoundError if code in GONE else OSError
        raise kind(f"S3 answered {code}") from error
    except (BotoCoreError, OSError) as error:
        raise OSError(f"S3: {type(error).__name__}") from error
