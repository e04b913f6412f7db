"""Which providers are open, which are not and what they lack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routes.dashboard.access import COOKIE
from routes.providers.registry import TYPES
from tests.routes.conftest import StartApp
from tests.routes.dashboard.conftest import Visitor, signed_in

OPEN = ["gmail", "mime", "shop", "message"]


@pytest.fixture
def visitor(start_app: StartApp, tmp_path: Path) -> Visitor:
    path = tmp_path / "mailonce.toml"
    path.write_text("[providers.shop]\ntype = 'postmark'\nusername = 'sender'\npassword = 'a long password'\n")
    return signed_in(start_app(mailonce_config=path))


def test_those_that_are_open_have_an_address_and_all_others_what_they_lack(visitor: Visitor) -> None:
    page = visitor.text("/providers")
    assert re.findall(r"api/ingress/(\w+)<", page) == OPEN
    assert re.findall(r"<dt>(\w+)</dt><dd>mailonce.toml takes", page) == sorted(TYPES.keys() - set(OPEN))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"public_url": "https://mail.example.org/"}, "https://mail.example.org"),
        ({"host": "192.0.2.1", "port": 8025}, "http://192.0.2.1:8025"),
    ],
)
def test_the_addresses_are_those_of_the_settings_whatever_host_the_client_names(
    start_app: StartApp, settings: dict[str, object], url: str
) -> None:
    http = signed_in(start_app(**settings)).http
    cookie = http.get_cookie(COOKIE)
    assert cookie is not None
    http.set_cookie(COOKIE, cookie.value, domain="evil.example")
    for page in ("/providers", "/", "/decisions"):
        answer = http.get(page, base_url="http://evil.example")
        assert answer.status_code == 200
        assert f"{url}/api/ingress/gmail" in answer.text
        assert "evil.example" not in answer.text


def test_decisions_can_be_filtered_by_each_that_is_open(visitor: Visitor) -> None:
    (choices,) = re.findall(r'<select name="provider".*?</select>', visitor.text("/decisions"), re.DOTALL)
    assert re.findall(r'<option value="(\w+)"', choices) == sorted(OPEN)
