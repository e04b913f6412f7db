"""The examples of docs/recognition.md: each row is sent, through the endpoints of providers, with the default settings.

To add an example, add a row: the fields of an email are those of ``EMAIL``. B has the fields of A, but for its own.
"""

import re
from email.message import EmailMessage

import pytest

from tests.routes.conftest import App, StartApp, bearer
from tests.support.server import INGRESS_TOKEN
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

PAGE = (ROOT / "docs/recognition.md").read_text()
EMAIL = {
    "via": "mime",
    "from": "ada@example.org",
    "to": "",
    "subject": "Report",
    "date": "Mon, 16 Nov 2026 10:00:00 +0100",
    "id": "",
    "text": "Hello",
    "html": "",
    "file": "",
}
MEANING = {"new": "processed", "a repeat": "already_processed", "stopped": "skipped_subject_group"}
Fields = dict[str, str]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    (table,) = re.findall(rf"^## {title}\n(?:[^|\n].*\n|\n)*\|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def fields_of(cell: str) -> Fields:
    found = {name: value.strip() for name, value in re.findall(r"`(\w+):([^`]*)`", cell)}
    assert found.keys() <= EMAIL.keys(), f"no such field in {cell}"
    return found


def post(app: App, fields: Fields) -> str:
    if fields["via"] == "gmail":
        body = {"subject": fields["subject"], "sender": fields["from"], "date": fields["date"], "body": fields["text"]}
        body |= {"message_id": fields["id"]} if fields["id"] else {}
        return app.status_of(body)
    message = EmailMessage()
    message.set_content(fields["text"])
    if fields["html"]:
        message.add_alternative(fields["html"], subtype="html")
    if fields["file"]:
        name, _, content = fields["file"].partition(" ")
        message.add_attachment(content.encode(), "application", "pdf", filename=name)
    heads = {"From": fields["from"], "To": fields["to"], "Date": fields["date"], "Message-ID": fields["id"]}
    # As written: the library would decode an encoded subject, and encode a plain one.
    head = "".join(f"{name}: {value}\n" for name, value in {"Subject": fields["subject"], **heads}.items() if value)
    headers = bearer(INGRESS_TOKEN) | {"Content-Type": "message/rfc822"}
    answer = app.http.post("/api/ingress/mime", data=head.encode() + message.as_bytes(), headers=headers)
    return str(answer.get_json()["status"])


@pytest.mark.parametrize("row", rows("The same email"), ids="|".join)
def test_an_email_is_the_same_as_another_or_not(
    start_app: StartApp, sink: Sink, redis_url: str, row: list[str]
) -> None:
    one, other, verdict, _ = row
    app = start_app(webhook_url=sink.url, redis_url=redis_url)
    first = EMAIL | fields_of(one)
    assert post(app, first) == "processed"
    assert post(app, first | fields_of(other)) == MEANING[verdict]


@pytest.mark.parametrize(("column", "scope"), [(2, ""), (3, "sender"), (4, "everyone")])
@pytest.mark.parametrize("row", rows("Subject groups"), ids="|".join)
def test_what_a_group_stops(start_app: StartApp, sink: Sink, row: list[str], column: int, scope: str) -> None:
    app = start_app(webhook_url=sink.url, **{"group_scope": scope} if scope else {})
    first = EMAIL | fields_of(row[0])
    assert post(app, first) == "processed"
    assert post(app, first | {"text": "Other words"} | fields_of(row[1])) == MEANING[row[column]]
