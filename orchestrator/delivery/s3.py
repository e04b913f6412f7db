"""Reads an object from Amazon S3, where SES has put an email. Needs the extra "ses".

Region, credentials and endpoint come from boto3's own environment variables, AWS_...
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deduplication.spool import CHUNK_BYTES, Content, collected
from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed

GONE = ("NoSuchKey", "NoSuchBucket", "404")
ENCRYPTED_BY_SES = "x-amz-key-v2"
# SNS waits 15 s for the whole answer, and the destinations need their time too.
ONE_TRY = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1})


class S3:
    """One for all threads of a process. Raises SettingsError if the environment is wrong."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: for large objects."""
        self._folder = folder
        try:
            self._client = boto3.Session().client("s3", config=ONE_TRY)
        except (BotoCoreError, ValueError) as error:
            raise SettingsError(f"the AWS_... variables must be valid for boto3; {error}") from error

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
