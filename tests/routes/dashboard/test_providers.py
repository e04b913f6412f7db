"""Which providers are open, which are not and what they lack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def test_decisions_can_be_filtered_by_each_that_is_open(visitor: Visitor) -> None:
    (choices,) = re.findall(r'<select name="provider".*?</select>', visitor.text("/decisions"), re.DOTALL)
    assert re.findall(r'<option value="(\w+)"', choices) == sorted(OPEN)
