"""All providers at once: their settings, one email in the form of each, and how anything else is put in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from urllib.parse import urlencode

from routes.providers.forms import parse_form
from routes.providers.registry import TYPES
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Fetches, request_of, with_body
from tests.routes.providers.sns_stand_in import TOPIC, Sns, received
from tests.routes.providers.test_cloudmailin import as_multipart, as_raw, multipart
from tests.routes.providers.test_mailgun import form, signed
from tests.routes.providers.test_mandrill import KEY, URL
from tests.routes.providers.test_mandrill import signed as signed_by_mandrill
from tests.routes.providers.test_resend import RAW_URL, WITH_KEY
from tests.routes.providers.test_resend import signed as signed_by_resend

SNS = Sns()
SETTINGS = f"""
[providers.mailgun]
signing_key = "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"
[providers.mandrill]
webhook_key = "{KEY}"
url = "{URL}"
[providers.sendgrid]
username = "sender"
password = "password"
[providers.postmark]
username = "sender"
password = "password"
[providers.cloudmailin]
username = "sender"
password = "password"
[providers.brevo]
username = "sender"
password = "password"
[providers.mailjet]
username = "sender"
password = "password"
[providers.ses]
topics = ["{TOPIC}"]
[providers.json]
{WITH_KEY}
"""
ONLY_THEY_CAN = ("ses", "resend")  # sign, or hand out the email; all others have a sample
PLAINLY = tuple(name for name in TYPES if name not in ONLY_THEY_CAN)


@cache
def raw(letter: Letter) -> bytes:
    """Written once: the property tests ask for it thousands of times."""
    return letter.mime.as_bytes()


def forms_of(letter: Letter, fetches: Fetches) -> Mapping[str, Callable[[], SampleRequest]]:
    """The letter, as each provider in each of its modes sends it: by the end of its address, and a word on the mode."""
    fetches.pages[SNS.certificate_url] = SNS.certificate
    api_url = f"https://api.resend.com/emails/receiving/{letter.event_id}?html_format=cid"
    fetches.pages[api_url] = json.dumps({"raw": {"download_url": RAW_URL}}).encode()
    fetches.pages[RAW_URL] = raw(letter)

    def plainly(name: str) -> Callable[[], SampleRequest]:
        return lambda: request_of(SETTINGS, name, letter)

    return {name: plainly(name) for name in PLAINLY} | {
        "cloudmailin multipart": lambda: as_multipart(request_of(SETTINGS, "cloudmailin", letter)),
        "cloudmailin raw": lambda: as_raw(request_of(SETTINGS, "cloudmailin", letter), raw(letter)),
        "mailgun/mime": lambda: mailgun_mime(letter),
        "sendgrid raw": lambda: sendgrid_raw(letter),
        "ses": lambda: SNS.notification(received(letter)),
        "ses in Base64": lambda: SNS.notification(received(letter, in_base64=True)),
        "resend": lambda: request_of(SETTINGS, "resend", letter),
    }


FORMS = tuple(forms_of(LETTER, Fetches()))
ADDRESSES = tuple(dict.fromkeys(form.split()[0] for form in FORMS))


def provider_named(form: str) -> str:
    return form.split()[0].split("/")[0]


def mailgun_mime(letter: Letter) -> SampleRequest:
    fields = {"recipient": "inbox@in.example.com", "body-mime": raw(letter).decode("latin-1")}
    body = urlencode(signed(fields, token=letter.event_id), encoding="latin-1").encode()
    return replace(form({}), path="/api/ingress/mailgun/mime", body=body)


def sendgrid_raw(letter: Letter) -> SampleRequest:
    request = request_of(SETTINGS, "sendgrid", letter)
    head = b'--xYzZY\r\nContent-Disposition: form-data; name="email"\r\n\r\n'
    return replace(request, body=head + raw(letter) + b"\r\n--xYzZY--\r\n")


@dataclass(frozen=True)
class Wrapping:
    """Where the provider's own words stand in a request, and how the request is proven with others in their place.

    As it is here: they are the whole body, and the proof in the headers does not cover them.
    """

    words_of: Callable[[SampleRequest], bytes] = lambda request: request.body
    proven: Callable[[SampleRequest, bytes], SampleRequest] = with_body


def field_of(request: SampleRequest, name: str) -> bytes:
    return parse_form(request.headers["Content-Type"], request.body).first(name)


def in_fields(request: SampleRequest, words: bytes) -> SampleRequest:
    """Each of a JSON object's; anything else is the body itself."""
    try:
        fields = json.loads(words)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return with_body(request, words)
    return multipart(request, {name.replace('"', ""): str(value) for name, value in fields.items()})


def fields_of(request: SampleRequest) -> bytes:
    form = parse_form(request.headers["Content-Type"], request.body)
    return json.dumps({name: form.text(name) for name in form.fields}).encode()


def in_mailguns(field: str) -> Wrapping:
    def proven(request: SampleRequest, words: bytes) -> SampleRequest:
        """Under a token of its own: one that has served another email is refused."""
        fields = {"body-plain": words.decode("latin-1"), field: words.decode("latin-1")}
        body = urlencode(signed(fields, token=sha256(words).hexdigest()[:50]), encoding="latin-1").encode()
        return replace(form({}), path=request.path, body=body)

    return Wrapping(lambda request: field_of(request, field), proven)


WRAPPINGS: Mapping[str, Wrapping] = {
    "cloudmailin multipart": Wrapping(fields_of, in_fields),
    "mailgun": in_mailguns("message-headers"),
    "mailgun/mime": in_mailguns("body-mime"),
    "mandrill": Wrapping(
        lambda request: field_of(request, "mandrill_events"),
        lambda _, words: signed_by_mandrill({"mandrill_events": words}),
    ),
    "ses": Wrapping(
        lambda request: json.loads(request.body)["Message"].encode(),
        lambda _, words: SNS.notification(words.decode("latin-1")),
    ),
    "resend": Wrapping(proven=lambda _, words: signed_by_resend(words)),
}


def wrapping_of(form: str) -> Wrapping:
    return WRAPPINGS.get(form, WRAPPINGS.get(form.split()[0], Wrapping()))
