"""The page behind Flask's test client, signed in with either token."""

import re
from dataclasses import dataclass, field

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.routes.conftest import App, StartApp
from tests.support.server import ADMIN_TOKEN
from tests.support.sink import Sink

VIEW_TOKEN = "view-token-for-tests-only"
HTML = {"Accept": "text/html"}
FRAGMENT = {"HX-Request": "true"}


@dataclass
class Visitor:
    """A browser without a screen: it keeps cookies, and sends the form's own token with what it posts."""

    app: App
    base_url: str = "http://localhost"
    http: FlaskClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = self.app.http.application.test_client()

    def get(self, path: str, **headers: str) -> TestResponse:
        answer = self.http.get(path, headers={**HTML, **headers}, base_url=self.base_url)
        answer.get_data()
        answer.close()
        return answer

    def text(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, path: str, *, form_on: str = "/sign-in", **fields: str) -> TestResponse:
        form = {"csrf_token": self.csrf_token(form_on), **fields}
        return self.http.post(path, data=form, headers=HTML, base_url=self.base_url)

    def csrf_token(self, form_on: str) -> str:
        (token,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', self.text(form_on)))
        return str(token)

    def sign_in(self, token: str, **fields: str) -> TestResponse:
        return self.post("/sign-in", token=token, **fields)


def signed_in(app: App, token: str = ADMIN_TOKEN, name: str = "Ada") -> Visitor:
    visitor = Visitor(app)
    assert visitor.sign_in(token, name=name).status_code == 303
    return visitor


@pytest.fixture
def app(start_app: StartApp, sink: Sink) -> App:
    return start_app(webhook_url=sink.url, view_token=VIEW_TOKEN)


@pytest.fixture
def operator(app: App) -> Visitor:
    return signed_in(app)


@pytest.fixture
def onlooker(app: App) -> Visitor:
    return signed_in(app, VIEW_TOKEN, "Eve")
