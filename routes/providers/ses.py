"""Amazon SES, and an SNS topic subscribed to our URL.

A receipt rule with the action "Publish to Amazon SNS topic" sends the email itself; with "Deliver to S3 bucket" and the
topic named there, it says where the email is. SNS sends JSON as text/plain, tries again on 5xx and 429 for at most an
hour, and gives up on any other 4xx.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from pydantic import AfterValidator, BeforeValidator

from deduplication.authentication import METHODS, Result
from deduplication.spool import Content
from deduplication.text import base64_chunks
from orchestrator.config.settings import MB, SettingsError
from orchestrator.config.words import reason
from orchestrator.delivery.fetching import FetchFailed
from routes.payload import InvalidPayload, parse_json
from routes.providers.base import Handshake, Options, Parsed, Provider, ProviderRequest, Secrets, Surroundings, as_list
from routes.providers.fields import Document

if TYPE_CHECKING:
    from orchestrator.delivery.s3 import S3

log = logging.getLogger(__name__)

MAX_CONFIRMATION_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 2 * MB  # SNS: 256 KB, before it is written as JSON twice
FETCH_TIMEOUT_S = 5.0  # SNS waits 15 s for the whole answer
TOPIC = re.compile(r"arn:(?:aws|aws-cn|aws-us-gov):sns:[a-z0-9-]+:\d{12}:[\w.-]+", re.ASCII)
VERDICTS = ("spamVerdict", "virusVerdict", "spfVerdict", "dkimVerdict", "dmarcVerdict")


def _topics(topics: tuple[str, ...]) -> tuple[str, ...]:
    for topic in topics:
        if not TOPIC.fullmatch(topic):
            raise reason(f"must be ARNs such as arn:aws:sns:eu-west-1:123456789012:inbound, got {topic!r}")
    return topics


class SesOptions(Options):
    topics: Annotated[Secrets, AfterValidator(_topics)]
    """The ARNs of the only topics whose messages are accepted: anyone can subscribe our URL to a topic of theirs."""
    buckets: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    """The only buckets that are read, for the action Deliver to S3 bucket; needs the extra `ses`."""


class Ses(Provider[SesOptions]):
    options_type = SesOptions
    media_types = ("text/plain",)
    body_type = str
    no_sample = "Amazon SNS signs with a key of its own: send an email to an address of the SES rule"

    def __init__(self, name: str, options: SesOptions, surroundings: Surroundings) -> None:
        # brings cryptography, 8 MB: only those with SES have it
        from routes.providers.sns import SnsVerifier

        super().__init__(name, options, surroundings)
        self._sns = SnsVerifier(surroundings.fetch)
        self._s3 = _open_s3(name, surroundings.folder) if options.buckets else None

    def verify(self, request: ProviderRequest) -> None:
        self._sns.verify(_message(request), self.options.topics, request.now)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        message = _message(request)
        match message["Type"]:
            case "SubscriptionConfirmation":
                self._confirm(message)
            case "UnsubscribeConfirmation":
                log.warning("provider %s: %s no longer sends us anything", self.name, message["TopicArn"])
                raise Handshake("unsubscription noted")
        try:
            notification = Document.of(parse_json(message.optional("Message").encode()))
        except InvalidPayload as error:
            raise InvalidPayload("Message must be a notification of SES", field="Message") from error
        kind = notification.optional("notificationType")
        if kind not in ("", "Received"):
            raise Handshake(f"{kind[:80]!r} is no email")
        mail, receipt = notification.object("mail"), notification.object("receipt")
        content = notification.optional("content").encode()
        is_text = b":" in content  # every header has one, and Base64 has none
        raw = (content if is_text else b"".join(base64_chunks([content]))) or self._fetch_raw(
            mail, receipt.object("action")
        )
        verdicts = {name: receipt.object(name).optional("status") for name in VERDICTS}
        mail.skip("headers", "commonHeaders", "headersTruncated")
        email = self.email(
            raw=raw,
            event_id=mail.optional("messageId"),
            recipients=[receipt.get("recipients")],
            return_path=mail.optional("source") if "source" in mail else None,
            spam=verdicts,
            verdicts=[Result(method, verdicts[f"{method}Verdict"]) for method in METHODS],
            extra=notification.unread,
        )
        return [email]

    def _confirm(self, message: Document) -> NoReturn:
        url = message.optional("SubscribeURL")
        if not is_sns_url(url, message["TopicArn"]):
            problem = f"SubscribeURL must be an https URL of SNS in the topic's region, got {url[:200]!r}"
            raise InvalidPayload(problem, field="SubscribeURL")
        self.surroundings.fetch(url, {}, FETCH_TIMEOUT_S, MAX_CONFIRMATION_BYTES)
        raise Handshake(f"subscription to {message['TopicArn']} confirmed")

    def _fetch_raw(self, mail: Document, action: Document) -> Content:
        """What a setting can fix is retried: SNS tries for an hour, and the email stays in its bucket."""
        ses_id, bucket, key = mail.optional("messageId"), *map(action.optional, ("bucketName", "objectKey"))
        try:
            if action.get("type") != "S3" or not bucket or not key:
                raise FetchFailed(
                    "content is needed: the rule must have the action Publish to Amazon SNS topic, for emails up to "
                    "150 KB, or Deliver to S3 bucket with the topic",
                    permanent=True,
                )
            if self._s3 is None or bucket not in self.options.buckets:
                raise FetchFailed(f"[providers.{self.name}] buckets does not name the bucket that SES uses")
            return self._s3.read(bucket, key, self.surroundings.max_email_bytes)
        except FetchFailed as error:
            raise FetchFailed(f"SES {ses_id}: {error}", permanent=error.permanent) from error


def _open_s3(name: str, folder: Path | None) -> S3:
    try:
        from orchestrator.delivery.s3 import S3  # needs the extra "ses"
    except ModuleNotFoundError as error:
        how = ".venv/bin/pip install -c constraints.txt -e '.[ses]'"
        raise SettingsError(f"providers.{name}.buckets needs the extra ses: {how}; {error}") from error
    return S3(folder)


def _message(request: ProviderRequest) -> Document:
    body = request.read_body()
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidPayload(f"a message of SNS must be at most {MAX_MESSAGE_BYTES} bytes, got {len(body)}")
    return Document.of(parse_json(body))


def is_sns_url(url: str, topic: str, path: str = r"[^\s\\]*") -> bool:
    """Whether it is an https URL of SNS in the topic's region: S3 serves a bucket named sns at sns.s3.amazonaws.com."""
    _, partition, _, region, *_ = topic.split(":")  # SesOptions has checked the topic
    domain = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    return bool(re.fullmatch(rf"https://sns\.{region}\.{re.escape(domain)}/{path}", url))
