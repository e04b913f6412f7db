"""CloudMailin, in any of its formats: JSON and multipart, normalized or with the headers' own names, and raw.

An attachment with a URL was put into the user's own storage by CloudMailin: its contents are unknown.

Any 4xx bounces the email to its sender; 5xx makes the sender's server try again.
"""

from typing import Any

from deduplication.authentication import Result
from routes.providers.base import BasicAuthProvider, Parsed, ProviderRequest
from routes.providers.fields import Document, FileFields, MailHeaders, nested
from routes.providers.forms import Form
from routes.providers.samples import BOUNCES, INBOX, Letter

FILE = FileFields("file_name", "content_type", ("content",), "size", "content_id", "disposition")
MAX_STEPS = 4  # attachments[0][file_name] has three


class Cloudmailin(BasicAuthProvider):
    rejected_status = 422
    media_types = ("application/json", "multipart/form-data")

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        is_form = request.media_type == "multipart/form-data"
        form = request.form if is_form else Form({})
        document = _document(form) if is_form else Document.of(request.json("content"))
        envelope = document.object("envelope")
        spf = envelope.object("spf")
        common: dict[str, Any] = {
            "recipients": [envelope.get("to"), envelope.get("recipients")],
            "return_path": envelope.optional("from") if "from" in envelope else None,
            "reply_text": document.optional("reply_plain"),
            "spam": {"spf": spf.get("result"), "spamd": envelope.object("spamd").get("score")},
            "verdicts": (Result("spf", spf.optional("result"), spf.optional("domain").lower()),),
        }
        if "message" in form:
            document.skip("message", "headers", "plain", "html", "attachments")
            return [self.email(raw=form.content("message"), **common, extra=document.unread)]
        email = self.email(
            headers=MailHeaders(document.get("headers")),
            html=document.text("html"),
            plain=document.text("plain"),
            files=[*(file for _, file in form.uploads), *document.files("attachments", FILE)],
            **common,
            extra=document.unread,
        )
        return [email]

    def _document(self, letter: Letter) -> dict[str, Any]:
        spf = {"result": "pass", "domain": "mail.example.org"}
        return {
            "headers": {name.lower().replace("-", "_"): value for name, value in letter.headers.items()},
            "envelope": {"to": INBOX, "from": BOUNCES, "recipients": [INBOX], "spf": spf},
            "plain": letter.text,
            "html": letter.html,
            "reply_plain": letter.text,
            "attachments": letter.attachments(FILE),
        }


def _document(form: Form) -> Document:
    """As in its JSON: headers[received][0] is the first of the list "received" under "headers"."""
    fields = ((name.replace("]", "").split("[", MAX_STEPS), form.text(name)) for name in form.fields)
    return Document({name: _with_lists(value) for name, value in nested(fields).items()})


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _with_lists(item) for name, item in value.items()}
    return list(inner.values()) if all(name.isdecimal() for name in inner) else inner
