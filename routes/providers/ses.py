"""Amazon SES, and an SNS topic subscribed to our URL.

A receipt rule with the action "Publish to Amazon SNS topic" sends the email itself; with "Deliver to S3 bucket" and the
topic named there, it says where the email is. SNS sends JSON as text/plain, tries again on 5xx and 429 for at most an
hour, and gives up on any other 4xx.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from deduplication.email import well_formed
from deduplication.mime import parse_mime
from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.providers.base import (
    InvalidPayload,
    Parsed,
    Provider,
    ProviderRequest,
    Surroundings,
    as_object,
    parse_json,
    sound,
)
from routes.providers.fields import addresses, object_of, scores, text_of
from routes.providers.options import MB, Options, Several, as_list

if TYPE_CHECKING:
    from orchestrator.delivery.s3 import S3

log = logging.getLogger(__name__)

MAX_CONFIRMATION_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 2 * MB  # SNS: 256 KB, before it is written as JSON twice
VERDICTS = ("spamVerdict", "virusVerdict", "spfVerdict", "dkimVerdict", "dmarcVerdict")


def _topics(topics: tuple[str, ...]) -> tuple[str, ...]:
    from routes.providers.sns import TOPIC

    for topic in topics:
        if not TOPIC.fullmatch(topic):
            raise ValueError(f"must be ARNs such as arn:aws:sns:eu-west-1:123456789012:inbound, got {topic!r}")
    return topics


def _ca_file(path: str) -> str:
    from routes.providers.sns import read_authorities

    try:
        read_authorities(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"must be a file with certificates in PEM, got {path!r}") from error
    return path


class SesOptions(Options):
    """``topics`` are the only ones whose messages are taken: anybody can subscribe our URL to a topic of theirs.

    ``buckets`` are the only ones that are read, whatever a message says.
    """

    topics: Annotated[Several, AfterValidator(_topics)]
    """The ARNs of the only topics whose messages are taken."""
    buckets: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    """The only buckets that are read, for the action Deliver to S3 bucket; needs the extra `ses`."""
    ca_file: Annotated[str, AfterValidator(_ca_file)] = ""
    """A PEM file with further issuers of SNS's certificates, should Amazon use one that Mailonce does not know."""


class Ses(Provider[SesOptions]):
    options_type = SesOptions
    needs = "topics"
    media_types = ("text/plain",)

    def __init__(self, name: str, options: SesOptions, surroundings: Surroundings) -> None:
        # brings cryptography, 8 MB: only those with SES have it
        from routes.providers.sns import AMAZON_CA, SnsVerifier, read_authorities

        super().__init__(name, options, surroundings)
        more = read_authorities(options.ca_file) if options.ca_file else []
        self._sns = SnsVerifier(surroundings.fetch, read_authorities(AMAZON_CA) + more)
        self._s3 = _open_s3(name) if options.buckets else None

    def verify(self, request: ProviderRequest) -> None:
        try:
            message = _message(request)
        except InvalidPayload:
            raise Unauthorized from None
        self._sns.verify(message, self.options.topics, request.now)

    def handshake(self, request: ProviderRequest) -> str | None:
        message = _message(request)
        match message["Type"]:
            case "SubscriptionConfirmation":
                return self._confirm(message)
            case "UnsubscribeConfirmation":
                log.warning("provider %s: %s no longer sends us anything", self.name, message["TopicArn"])
                return "unsubscription noted"
        notification = _notification(message)
        kind = text_of(notification, "notificationType")
        return None if kind in ("", "Received") else f"{kind[:80]!r} is no email"

    def _confirm(self, message: dict[str, Any]) -> str:
        from routes.providers.sns import FETCH_TIMEOUT_S, is_sns_url

        url = text_of(message, "SubscribeURL")
        if not is_sns_url(url, message["TopicArn"]):
            reason = f"SubscribeURL must be an https URL of SNS in the topic's region, got {url[:200]!r}"
            raise InvalidPayload(reason, field="SubscribeURL")
        self.surroundings.fetch(url, {}, FETCH_TIMEOUT_S, MAX_CONFIRMATION_BYTES)
        log.info("provider %s: subscription to %s confirmed", self.name, message["TopicArn"])
        return "subscription confirmed"

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        notification = _notification(_message(request))
        mail, receipt = object_of(notification, "mail"), object_of(notification, "receipt")
        email = parse_mime(
            _raw(text_of(notification, "content")) or self._fetch_raw(mail, object_of(receipt, "action")),
            provider=self.name,
            event_id=self.own_id(text_of(mail, "messageId")),
            recipients=addresses(receipt.get("recipients")),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )
        verdicts = scores({name: object_of(receipt, name).get("status") for name in VERDICTS})
        return [sound(replace(email, spam={**email.spam, **verdicts}))]

    def _fetch_raw(self, mail: Mapping[str, Any], action: Mapping[str, Any]) -> bytes:
        """What a setting can cure is asked for again: SNS tries for an hour, and the email stays in its bucket."""
        ses_id, bucket, key = text_of(mail, "messageId"), text_of(action, "bucketName"), text_of(action, "objectKey")
        try:
            if text_of(action, "type") != "S3" or not bucket or not key:
                raise FetchFailed(
                    "content is needed: the rule takes the action Publish to Amazon SNS topic, for emails up to "
                    "150 KB, or Deliver to S3 bucket with the topic",
                    permanent=True,
                )
            if self._s3 is None or bucket not in self.options.buckets:
                raise FetchFailed(f"[providers.{self.name}] buckets does not name the bucket that SES uses")
            return self._s3.read(bucket, key, self.surroundings.max_email_bytes)
        except FetchFailed as error:
            if not error.permanent:
                raise FetchFailed(f"SES {ses_id}: {error}") from error
            log.error("provider %s: SES %s is given up: %s", self.name, ses_id, error)
            raise InvalidPayload(str(error), field="content") from error


def _open_s3(name: str) -> S3:
    try:
        from orchestrator.delivery.s3 import S3  # needs the extra "ses"
    except ModuleNotFoundError as error:
        how = ".venv/bin/pip install -c constraints.txt -e '.[ses]'"
        raise SettingsError(f"providers.{name}.buckets takes the extra ses: {how}; {error}") from error
    return S3()


def _message(request: ProviderRequest) -> dict[str, Any]:
    if len(request.body) > MAX_MESSAGE_BYTES:
        raise InvalidPayload("SNS never sends that much")
    return as_object(parse_json(request.body))


def _notification(message: dict[str, Any]) -> dict[str, Any]:
    """SES's own JSON within SNS's."""
    try:
        return as_object(parse_json(text_of(message, "Message")))
    except InvalidPayload as error:
        raise InvalidPayload("Message takes a notification of SES", field="Message") from error


def _raw(content: str) -> bytes:
    """As UTF-8 or in Base64, which has no colon, while every header has one."""
    text = well_formed(content)
    if ":" not in text:
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            pass
    return text.encode()
