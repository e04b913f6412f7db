"""What a provider is: its settings in mailonce.toml, and a class that verifies a request and parses it into emails."""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from werkzeug.datastructures import Headers

from deduplication.email import Email
from deduplication.message import Message
from deduplication.spool import Content, read_all
from deduplication.values import frozen, kept_property
from orchestrator.config.settings import MB
from orchestrator.config.words import reason
from routes.auth import Unauthorized, equals_any
from routes.mime import parse_mime
from routes.payload import InvalidPayload, parse_json
from routes.providers.fields import MailHeaders
from routes.providers.forms import Form, parse_form
from routes.providers.samples import Letter, Rendered, SampleRequest

BEARER = "Bearer"
BASIC = 'Basic realm="mailonce"'
MAX_CLOCK_DIFFERENCE = timedelta(minutes=5)


def as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _not_empty(secrets: tuple[str, ...]) -> tuple[str, ...]:
    if not secrets or not all(secret.strip() for secret in secrets):
        raise reason("must not be empty")
    return secrets


Secrets = Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_not_empty), Field(repr=False)]
"""A secret, or a list of them during a rotation. An empty one would let anyone in."""

NonEmpty = Annotated[str, AfterValidator(lambda text: _not_empty((text,))[0])]
Host = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]


class NoOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class HeaderOptions(NoOptions):
    trusted_authserv_ids: Annotated[tuple[Host, ...], BeforeValidator(as_list)] = Field(
        default=(), description='a list of hosts such as ["mx.example.org"]'
    )
    """Hosts whose Authentication-Results header counts: those that remove such a header of the sender's own."""


class Options(HeaderOptions):
    """Settings of every provider."""

    attachments: Literal["link", "inline", "metadata"] = "link"
    """What the webhook has of attachments beside name, type, size and SHA-256: a link, or with `inline` the contents.
    With REDIS_URL and no FILES_URL, the default is `inline` up to 1 MB of each email."""
    attachments_max_mb: float = Field(default=5, gt=0, le=100, description="megabytes")
    """Up to how many megabytes of one email's attachments are sent inline."""
    raw: bool = True
    """Whether the webhook has a link to the raw email too, where the provider sends it and attachments are links."""


class LoginOptions(NoOptions):
    username: str = ""
    """The user in the URL that the provider was given."""
    password: Secrets = ()
    """The password in that URL."""

    @model_validator(mode="after")
    def _check_both_or_neither(self) -> Self:
        if bool(self.username) != bool(self.password):
            raise reason("needs username and password together")
        return self


class BasicAuthOptions(Options, LoginOptions):
    username: NonEmpty
    """The user in the URL that the provider was given."""
    password: Secrets
    """The password in that URL."""


AnyOptions = TypeVar("AnyOptions", bound=NoOptions)


class Handshake(Exception):
    """The request is valid but has no email, such as the confirmation of a subscription. The message says which."""


@frozen
class ProviderRequest:
    """One HTTP request, without Flask. ``content`` reads the body, and returns the same each time."""

    headers: Headers
    content: Callable[[], Content]
    now: datetime

    def read_body(self) -> bytes:
        return read_all(self.content())

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "")

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    def require_recent(self, timestamp: str, at_most: timedelta) -> None:
        """Raises Unauthorized unless a signed time, in seconds since 1970, is recent; clocks may differ a little."""
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 11):
            raise Unauthorized
        age_s = self.now.timestamp() - int(timestamp)
        if not -MAX_CLOCK_DIFFERENCE.total_seconds() <= age_s <= at_most.total_seconds():
            raise Unauthorized

    def json(self, files: str = "") -> Any:
        """Of a large body, fields with these names (a regex) hold files, which are not read into memory."""
        return parse_json(self.content(), self.content_type, files)

    @kept_property
    def form(self) -> Form:
        return parse_form(self.content_type, self.content())


Fetch = Callable[[str, Mapping[str, str], float, int], Content]
"""Takes the URL, headers, the time limit in seconds and the most bytes. Raises FetchFailed."""


@frozen
class Surroundings:
    """What a provider may need from the service. ``max_email_bytes`` limits what it fetches. Without ``has_links``, a
    link to a file would reach the wrong machine, unless the operator says otherwise. ``folder``: for large files."""

    ingress_tokens: tuple[str, ...]
    fetch: Fetch
    max_email_bytes: int = 25 * MB
    destinations: Collection[str] = ()
    has_links: bool = True
    folder: Path | None = None


Parsed = Email | Message | InvalidPayload


class Provider(ABC, Generic[AnyOptions]):
    """From a provider's request to its emails. ``name`` is the last part of its URL.

    api_ingress.py calls verify and parse, in this order. Nothing is recorded before ``verify`` succeeds.
    """

    options_type: type[AnyOptions]
    rejected_status: ClassVar[int | None] = None  # makes it give up; if it is None, that of the error is used
    retry_status: ClassVar[int] = 503  # makes it send the request again
    endings: ClassVar[tuple[str, ...]] = ("",)  # what may follow its name in the URL
    answers_lists: ClassVar[bool] = False  # it reads the result of each item: invalid ones do not reject the request
    answers_probes: ClassVar[bool] = False  # it checks with GET or HEAD that the URL responds
    own_authserv_ids: ClassVar[tuple[str, ...]] = ()  # their Authentication-Results count whatever the settings say
    challenge: str = ""  # if the proof is in the Authorization header: some clients send it only when challenged
    no_sample: str = ""  # why only the provider itself can make such a request, if that is so
    # For routes/openapi.py: the Content-Types of its requests, what its body is, and which of SECURITY prove the origin
    # of a request (none if the proof is in the body).
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    body_type: ClassVar[Any] = dict[str, Any]
    security: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: AnyOptions, surroundings: Surroundings) -> None:
        self.name = name
        self.options = options
        self.surroundings = surroundings
        wanted, most_mb = "metadata", 0.0
        if isinstance(options, Options):
            wanted, most_mb = options.attachments, options.attachments_max_mb
            if "attachments" not in options.model_fields_set and not surroundings.has_links:
                wanted, most_mb = "inline", 1
        inline_bytes = int(most_mb * MB) if wanted == "inline" else 0
        more = options.trusted_authserv_ids if isinstance(options, HeaderOptions) else ()
        self._trusted = (*self.own_authserv_ids, *more)
        files: dict[str, Any] = {"inline_bytes": inline_bytes, "is_linked": wanted == "link"}
        self._common = {**files, "provider": name, "trusted_authserv_ids": self._trusted}  # for Email.received
        self.credentials: tuple[str, ...] = ()
        if isinstance(options, LoginOptions) and options.username:
            logins = (f"{options.username}:{password}".encode() for password in options.password)
            self.challenge, self.credentials = BASIC, tuple(base64.b64encode(login).decode() for login in logins)
        elif "ingressToken" in self.security:
            self.challenge = BEARER
            self.credentials = getattr(options, "token", ()) or surroundings.ingress_tokens  # json may have its own

    def verify(self, request: ProviderRequest) -> str | None:
        """Raises Unauthorized, or InvalidPayload where not even the proof can be read: both are answered alike.

        Returns what may prove one email only, if the proof does not cover the body. By default, the proof is in the
        Authorization header.
        """
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        wanted = self.challenge.partition(" ")[0]
        if scheme.lower() != wanted.lower() or not equals_any(given.strip(), self.credentials):
            raise Unauthorized
        return None

    @abstractmethod
    def parse(self, request: ProviderRequest) -> list[Parsed]:
        """The emails of a verified request, in their order, with an InvalidPayload in the place of an invalid one.

        Raises InvalidPayload if that is true of all, Handshake, and FetchFailed if a part cannot be fetched for now.
        """

    def email(
        self, *, raw: Content | None = None, headers: MailHeaders | None = None, event_id: str = "", **fields: Any
    ) -> Email:
        """From a raw email, its headers, and the fields of Email.received, which count where the headers have none.

        Raises InvalidPayload if there is no email.
        """
        event_id = event_id.strip()
        if fields.get("return_path") is None:
            fields.pop("return_path", None)  # then that of the headers counts
        fields |= self._common
        fields["event_id"] = event_id and f"{self.name}:{event_id}"  # distinct from those of other providers
        is_kept = self._common["is_linked"] and isinstance(self.options, Options) and self.options.raw
        fields["original"] = fields.get("original", raw) if is_kept else None
        if raw is not None:
            return require_email(parse_mime(raw, **fields))
        return require_email(Email.received(**(fields if headers is None else headers.added_to(fields))))

    def sample(self, letter: Letter, now: datetime) -> SampleRequest:
        """The letter as the provider would send it, with a valid proof."""
        headers, body = self._sample(letter, now)
        if self.credentials:
            headers = {**headers, "Authorization": f"{self.challenge.partition(' ')[0]} {self.credentials[0]}"}
        return SampleRequest(f"/api/ingress/{self.name}", headers, body)

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        return {"Content-Type": "application/json"}, json.dumps(self._document(letter)).encode()

    def _document(self, letter: Letter) -> dict[str, Any]:
        """The letter in the provider's JSON."""
        raise NotImplementedError(self.no_sample)


class BasicAuthProvider(Provider[BasicAuthOptions]):
    """Authenticates with the username and password in the URL that the provider was given."""

    options_type = BasicAuthOptions
    security = ("login",)


def parse_all(parse: Callable[[Any], Email | Message], documents: Iterable[Any]) -> list[Parsed]:
    """An invalid one does not stop the others."""
    parsed: list[Parsed] = []
    for document in documents:
        try:
            parsed.append(parse(document))
        except InvalidPayload as error:
            parsed.append(error)
    return parsed


def require_email(email: Email) -> Email:
    """Raises InvalidPayload without any of these: it is not an email. A bounce may have a subject alone."""
    if not any(part.strip() for part in (email.sender, email.date, email.message_id, email.subject)):
        raise InvalidPayload("the request has no email: neither a sender nor a date nor a Message-ID nor a subject")
    return email
