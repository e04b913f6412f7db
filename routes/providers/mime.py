"""Raw email as a mail server pipes it on: curl --data-binary @- -H 'Content-Type: message/rfc822'."""

from __future__ import annotations

from deduplication.mime import parse_mime
from routes.auth import require_bearer
from routes.providers.base import BEARER, InvalidPayload, Parsed, Provider, ProviderRequest, sound
from routes.providers.options import Options

MEDIA_TYPES = ("message/rfc822", "message/global")


class Mime(Provider[Options]):
    """Open to whoever has the ingress token."""

    options_type = Options
    challenge = BEARER
    media_types = MEDIA_TYPES
    security = ("ingressToken",)

    def verify(self, request: ProviderRequest) -> None:
        require_bearer(request.header("Authorization"), self.surroundings.ingress_tokens)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        if request.media_type not in MEDIA_TYPES:
            raise InvalidPayload("Content-Type takes message/rfc822", http_status=415)
        inline_bytes = self.options.inline_attachment_bytes
        return [sound(parse_mime(request.body, provider=self.name, inline_attachment_bytes=inline_bytes))]
