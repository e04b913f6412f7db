"""Several destinations, media and content: what stops an email at which destination, and what a retry does."""

from pathlib import Path

import pytest

from tests.routes.conftest import StartApp, bearer
from tests.support.server import INGRESS_TOKEN, email
from tests.support.sink import Sink

OTHER = "https://we.tl/t-other"
LISTED = "[[routes]]\nname = 'all'\nmedia = 'listed'\n"  # compares links to files


def linking(*links: str, subject: str) -> dict[str, object]:
    return email(subject=subject, body=" ".join(links), date=f"2026-11-16T09:00:0{len(subject) % 10}Z")


def test_files_of_emails_and_of_messages_count_apart(start_app: StartApp, sink: Sink) -> None:
    """Anyone may write the post that a script sends as a message."""
    app = start_app(webhook_url=sink.url, toml=LISTED)
    posts = [OTHER, f"{OTHER}@example.org", f"{OTHER} @example.org"]
    for number, text in enumerate(posts):
        message = {"source": "tg:news", "id": number, "text": f"{number} {text}"}
        app.http.post("/api/ingress/message", json=message, headers=bearer(INGRESS_TOKEN))
    assert [each.payload["id"] for each in sink.received] == ["0", "1"], "the third links to the file of the first"
    assert app.status_of(linking(OTHER, subject="a")) == "processed"
    assert app.status_of(linking(OTHER, subject="bb")) == "skipped_media"


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("", "processed"),  # every reply about a document links it, and so does many a signature
        ("[[routes]]\nname = 'all'\nmedia = 'off'\n", "processed"),
        (LISTED, "processed"),
        ("[[routes]]\nname = 'all'\nmedia = 'all'\n", "skipped_media"),
    ],
)
def test_a_route_says_which_links_count(start_app: StartApp, sink: Sink, route: str, expected: str) -> None:
    app = start_app(webhook_url=sink.url, toml=route)
    app.post(linking("https://files.example/a.zip", subject="a"))
    assert app.status_of(linking("https://files.example/a.zip", subject="bb")) == expected


def test_a_repeated_text_is_skipped_if_destinations_ask(start_app: StartApp, sink: Sink, tmp_path: Path) -> None:
    app = start_app(webhook_url=sink.url, data_dir=tmp_path / "default")
    assert [app.status_of(email(subject=subject)) for subject in "ab"] == ["processed", "processed"]
    with Sink() as crm, Sink() as archive:
        app = start_app(
            toml=f"[destinations.crm]\nurl = '{crm.url}'\ncontent_window_s = 60\n"
            f"[destinations.archive]\nurl = '{archive.url}'\ncontent_window_s = 60\n"
            "[[routes]]\nname = 'one'\nmatch = [{ field = 'subject', equals = 'one' }]\ndestinations = ['crm']\n"
            "[[routes]]\nname = 'both'\ndestinations = ['crm', 'archive']\n"
        )
        first = app.post(email(subject="one")).get_json()
        assert app.status_of(email(subject="two")) == "processed", "archive did not have it"
        third = app.post(email(subject="three")).get_json()
        assert (third["status"], third["reason"]["gate"]) == ("skipped_content", "content")
        assert third["reason"]["original"] == first["id"]
        assert (len(crm.received), len(archive.received)) == (1, 1)
