"""Raw email as a mail server pipes it on: curl --data-binary @- -H 'Content-Type: message/rfc822'.

The headers X-Envelope-From and X-Envelope-To of the request have the addresses of the envelope, in UTF-8: <> is the
sender of a notification, and several recipients are separated by commas.
"""

from datetime import datetime

from routes.payload import InvalidPayload
from routes.providers.base import Options, Parsed, Provider, ProviderRequest
from routes.providers.samples import Letter, Rendered


class Mime(Provider[Options]):
    options_type = Options
    media_types = ("message/rfc822", "message/global")
    body_type = str
    security = ("ingressToken",)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        if request.media_type not in self.media_types:
            reason = f"Content-Type must be message/rfc822, got {request.media_type[:200]!r}"
            raise InvalidPayload(reason, http_status=415)
        sender, recipients = (_text(request.headers.get(f"X-Envelope-{which}")) for which in ("From", "To"))
        return [self.email(raw=request.content(), return_path=sender, recipients=[recipients])]

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        return {"Content-Type": "message/rfc822"}, letter.mime.as_bytes()


def _text(header: str | None) -> str | None:
    """Of the bytes of a header, which WSGI hands over as Latin-1."""
    return None if header is None else header.encode("latin-1", "replace").decode(errors="replace")
