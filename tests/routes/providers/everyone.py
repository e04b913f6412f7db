"""All providers at once: their settings, and one email in the form of each."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from routes.providers.registry import TYPES
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Fetches, raw, request_of
from tests.routes.providers.sns_stand_in import TOPIC, Sns, received
from tests.routes.providers.test_cloudmailin import as_multipart, as_raw
from tests.routes.providers.test_mailgun import KEY as MAILGUN_KEY
from tests.routes.providers.test_mailgun import form, signed
from tests.routes.providers.test_mandrill import KEY as MANDRILL_KEY
from tests.routes.providers.test_mandrill import section
from tests.routes.providers.test_resend import RAW_URL, WITH_KEY

SNS = Sns()
LOGINS = ("sendgrid", "postmark", "cloudmailin", "brevo", "mailjet")
SETTINGS = f"""
[providers.mailgun]
signing_key = "{MAILGUN_KEY}"
{section(MANDRILL_KEY)}
{"".join(f"[providers.{name}]{chr(10)}username='sender'{chr(10)}password='password'{chr(10)}" for name in LOGINS)}
[providers.ses]
topics = ["{TOPIC}"]
[providers.json]
{WITH_KEY}
"""
WITH_SAMPLES = tuple(name for name in TYPES if name not in ("ses", "resend"))


def forms_of(letter: Letter, fetches: Fetches) -> Mapping[str, Callable[[], SampleRequest]]:
    """The letter, as each provider in each of its modes sends it: by the end of its address, and a word on the mode."""
    fetches.pages[SNS.certificate_url] = SNS.certificate
    api_url = f"https://api.resend.com/emails/receiving/{letter.event_id}?html_format=cid"
    fetches.pages[api_url] = json.dumps({"raw": {"download_url": RAW_URL}}).encode()
    fetches.pages[RAW_URL] = raw(letter)

    def sample_of(name: str) -> Callable[[], SampleRequest]:
        return lambda: request_of(SETTINGS, name, letter)

    return {name: sample_of(name) for name in (*WITH_SAMPLES, "resend")} | {
        "cloudmailin multipart": lambda: as_multipart(request_of(SETTINGS, "cloudmailin", letter)),
        "cloudmailin raw": lambda: as_raw(request_of(SETTINGS, "cloudmailin", letter), raw(letter)),
        "mailgun/mime": lambda: mailgun_mime(letter),
        "sendgrid raw": lambda: sendgrid_raw(letter),
        "ses": lambda: SNS.notification(received(letter)),
        "ses in Base64": lambda: SNS.notification(received(letter, in_base64=True)),
    }


FORMS = tuple(forms_of(LETTER, Fetches()))
ADDRESSES = tuple(dict.fromkeys(form.split()[0] for form in FORMS))


def provider_named(form: str) -> str:
    return form.split()[0].split("/")[0]


def mailgun_mime(letter: Letter) -> SampleRequest:
    fields = {"recipient": "inbox@in.example.com", "body-mime": raw(letter).decode("latin-1")}
    return form(signed(fields, token=letter.event_id), "/api/ingress/mailgun/mime")


def sendgrid_raw(letter: Letter) -> SampleRequest:
    request = request_of(SETTINGS, "sendgrid", letter)
    head = b'--xYzZY\r\nContent-Disposition: form-data; name="email"\r\n\r\n'
    return replace(request, body=head + raw(letter) + b"\r\n--xYzZY--\r\n")
