"""The page of a real server, asked as a browser without a screen would: it keeps cookies and sends the form's token."""

import re

import requests

from tests.support.server import ADMIN_TOKEN

ASKED_WITHIN_S = 60


class PageVisitor:
    """Signed in from the start, unless ``token`` is a wrong one. ``http``: how, where the page is behind TLS."""

    def __init__(self, url: str, token: str = ADMIN_TOKEN, http: requests.Session | None = None) -> None:
        self.url = url
        self.http = http or requests.Session()
        self.http.trust_env = False
        self.http.headers["Accept"] = "text/html"
        self.signed_in = self.sign_in(token)

    def sign_in(self, token: str = ADMIN_TOKEN) -> requests.Response:
        return self.post("/sign-in", form_on="/sign-in", token=token, name="Ada")

    def get(self, path: str) -> requests.Response:
        return self.http.get(f"{self.url}{path}", timeout=ASKED_WITHIN_S, allow_redirects=False)

    def text(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    def post(self, path: str, *, form_on: str, **fields: str) -> requests.Response:
        (csrf_token,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', self.text(form_on)))
        form = {"csrf_token": csrf_token, **fields}
        headers = {"Referer": f"{self.url}{form_on}"}  # wanted behind TLS
        return self.http.post(
            f"{self.url}{path}", data=form, headers=headers, timeout=ASKED_WITHIN_S, allow_redirects=False
        )
