"""Any query and any form gets an answer: a page, or an error that says what is wrong, never a 5xx."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.operations.search import FIELDS
from tests.routes.conftest import App
from tests.routes.dashboard.conftest import Visitor
from tests.support.server import email

NAMES = sorted({*FIELDS, "cursor", "last", "span", "tab", "id", "all", "back"})
VALUES = st.one_of(
    st.sampled_from(["dead", "skipped_media", "identity", "day", "json", "yes", "9999-12-31T23:59:59Z", "W10", "-1"]),
    st.text(max_size=40),
    st.binary(max_size=20),
)
QUERIES = st.dictionaries(st.sampled_from([*NAMES, "scope", "value", "next", "reason"]), VALUES, max_size=5)
ACTIONS = ("/do/release", "/do/replay", "/do/forget", "/do/replay-emails", "/forget")
PATHS = ("/", "/decisions", "/deliveries", "/destinations", "/sign-in", *ACTIONS)
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def busy(app: App, operator: Visitor) -> Visitor:
    app.post(email(subject="Lot 1", body="first"))
    app.post(email(subject="Again lot 1", body="second"))
    return operator


@pytest.mark.parametrize("query", ["all=x", "back=x", "name=x", "id=1&id=2", "self=x", "_external=1", "_anchor=x"])
@pytest.mark.parametrize("path", ["/decisions", "/deliveries"])
def test_links_contain_only_filters(busy: Visitor, path: str, query: str) -> None:
    assert query.partition("&")[0] not in busy.text(f"{path}?status=&q=lot&{query}").partition("All matching")[2]


@MANY
@given(st.sampled_from(PATHS), QUERIES)
def test_any_query_is_shown_or_refused(busy: Visitor, path: str, query: dict[str, str | bytes]) -> None:
    encoded = {name: each if isinstance(each, bytes) else each.encode(errors="replace") for name, each in query.items()}
    assert busy.get(f"{path}?{urlencode(encoded)}").status_code in (200, 400, 404)
    if path in ACTIONS:
        fields = {name: value.decode("latin-1") for name, value in encoded.items()}
        assert busy.post(path, **fields).status_code in (303, 400)


@given(st.text(max_size=60))
@MANY
def test_any_id_is_found_or_not(busy: Visitor, id_: str) -> None:
    path = id_.encode(errors="replace").decode().replace("/", "").replace("?", "").replace("#", "").replace("\\", "")
    assert busy.get(f"/decisions/{path}").status_code in (200, 404)
