"""Posts and chat messages: JSON of our own, one object or a list of them, each with its own result."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt

from deduplication.message import Message
from routes.payload import InvalidPayload, read
from routes.providers.base import NoOptions, Parsed, Provider, ProviderRequest, parse_all

MOST = 1000


TextOrNumber = Annotated[
    str | StrictInt | StrictFloat | None, AfterValidator(lambda value: value if value is None else str(value))
]


class MessageIn(BaseModel):
    """Identified by `id` (within its `source`), or `name`, `permalink`, `url`, or `title` and `created_utc`."""

    source: str | None = Field(default=None, examples=["tg:news"])
    id: TextOrNumber = Field(default=None, examples=[1])
    text: str | None = Field(default=None, examples=["Hello"])
    date: TextOrNumber = None
    title: str | None = None
    name: str | None = None
    url: str | None = None
    permalink: str | None = None
    created_utc: TextOrNumber = None
    media: tuple[str, ...] | None = None
    destinations: tuple[str, ...] | None = Field(default=None, description="Only these destinations of its route.")


class Messages(Provider[NoOptions]):
    """Always enabled, and not configured in mailonce.toml."""

    options_type = NoOptions
    security = ("ingressToken",)
    body_type = MessageIn | Annotated[list[MessageIn], Field(max_length=MOST)]
    answers_lists = True

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        sent = request.json()
        documents = sent if isinstance(sent, list) else [sent]
        if len(documents) > MOST:
            raise InvalidPayload(f"the body must have at most {MOST} messages, got {len(documents)}")
        return parse_all(self._message, documents)

    def _message(self, document: Any) -> Message:
        sent = read(MessageIn, document, "message")
        known = self.surroundings.destinations
        if not set(sent.destinations or ()) <= set(known):
            raise InvalidPayload(f"destinations must be some of {', '.join(sorted(known))}", field="destinations")
        message = Message(**{field: value for field, value in sent if value is not None})
        if not message.key:
            raise InvalidPayload("id is needed, or name, permalink, url, or title and created_utc", field="id")
        return message
