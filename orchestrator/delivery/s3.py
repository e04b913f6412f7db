"""One object out of Amazon S3, where SES has put an email. Needs the extra "ses".

Region, credentials and endpoint are those of boto3's own environment, AWS_...
"""

from __future__ import annotations

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed

GONE = ("NoSuchKey", "NoSuchBucket", "404")
ENCRYPTED_BY_SES = "x-amz-key-v2"
# SNS waits 15 s for the whole answer, and the destinations want theirs.
ONE_TRY = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1})


class S3:
    """One for all threads of a process. Raises SettingsError if that environment is wrong."""

    def __init__(self) -> None:
        try:
            self._client = boto3.Session().client("s3", config=ONE_TRY)
        except (BotoCoreError, ValueError) as error:
            raise SettingsError(f"the environment's AWS_... takes what boto3 does; {error}") from error

    def read(self, bucket: str, key: str, max_bytes: int) -> bytes:
        """Raises FetchFailed. What is too big is left where it is: its size comes before its contents."""
        try:
            found = self._client.get_object(Bucket=bucket, Key=key)
            with found["Body"] as contents:
                if found["ContentLength"] > max_bytes:
                    raise FetchFailed(f"the object in S3 is larger than {max_bytes} bytes", permanent=True)
                if ENCRYPTED_BY_SES in found["Metadata"]:
                    raise FetchFailed(
                        "the object in S3 is encrypted by SES: switch Encrypt Message off in the rule's S3 action "
                        "(the bucket's own encryption is no obstacle)",
                        permanent=True,
                    )
                return bytes(contents.read())
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in GONE:
                raise FetchFailed("the object is not in S3, or no longer", permanent=True) from error
            raise FetchFailed(f"S3 answered {code}") from error
        except (BotoCoreError, OSError) as error:
            raise FetchFailed(f"S3: {type(error).__name__}") from error
