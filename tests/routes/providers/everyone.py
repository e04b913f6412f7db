"""All providers at once: their settings, and one email in the form of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlencode

from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import Fetches, request_of
from tests.routes.providers.sns_stand_in import TOPIC, Sns, received
from tests.routes.providers.test_mailgun import form, signed
from tests.routes.providers.test_resend import RAW_URL, WITH_KEY
from tests.routes.providers.test_resend import signed as signed_by_resend

SNS = Sns()
SETTINGS = f"""
[providers.mailgun]
signing_key = "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"
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
PLAINLY = ("gmail", "mime", "json", "mailgun", "sendgrid", "postmark", "cloudmailin", "brevo", "mailjet")
ADDRESSES = (*PLAINLY, "mailgun/mime", "ses", "resend")


def forms_of(letter: Letter, fetches: Fetches) -> Mapping[str, Callable[[], SampleRequest]]:
    """The letter, as each provider in each of its modes sends it."""
    fetches.pages[SNS.certificate_url] = SNS.certificate
    api_url = f"https://api.resend.com/emails/receiving/{letter.event_id}?html_format=cid"
    fetches.pages[api_url] = json.dumps({"raw": {"download_url": RAW_URL}}).encode()
    fetches.pages[RAW_URL] = letter.mime.as_bytes()

    def plainly(name: str) -> Callable[[], SampleRequest]:
        return lambda: request_of(SETTINGS, name, letter)

    return {name: plainly(name) for name in PLAINLY} | {
        "mailgun/mime": lambda: mailgun_mime(letter),
        "sendgrid raw": lambda: sendgrid_raw(letter),
        "ses": lambda: SNS.notification(received(letter)),
        "ses in Base64": lambda: SNS.notification(received(letter, in_base64=True)),
        "resend": lambda: request_of(SETTINGS, "resend", letter),
    }


def mailgun_mime(letter: Letter) -> SampleRequest:
    fields = {"recipient": "inbox@in.example.com", "body-mime": letter.mime.as_bytes().decode("latin-1")}
    body = urlencode(signed(fields, token=letter.event_id), encoding="latin-1").encode()
    return replace(form({}), path="/api/ingress/mailgun/mime", body=body)


def sendgrid_raw(letter: Letter) -> SampleRequest:
    request = request_of(SETTINGS, "sendgrid", letter)
    head = b'--xYzZY\r\nContent-Disposition: form-data; name="email"\r\n\r\n'
    return replace(request, body=head + letter.mime.as_bytes() + b"\r\n--xYzZY--\r\n")


def proven(name: str, request: SampleRequest, body: bytes) -> SampleRequest:
    """Anything in the place of the email, with the provider's proof of it."""
    if name.startswith("mailgun"):
        field = "body-mime" if name.endswith("mime") else "message-headers"
        fields = {"body-plain": body.decode("latin-1"), field: body.decode("latin-1")}
        return replace(form(signed(fields, token=body.hex()[:50])), path=f"/api/ingress/{name}")
    if name == "ses":
        return SNS.notification(body.decode("latin-1"))
    return signed_by_resend(body) if name == "resend" else replace(request, body=body)
