"""POST /api/ingress/gmail. Its JSON is tested in tests/routes/test_api_ingress.py."""

import pytest

from orchestrator.config.settings import SettingsError
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Serve, email_in, provider_of, request_of, with_headers
from tests.routes.providers.contract import ProviderContract, json_with
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN

OTHER_TOKEN = "another-token-of-some-length"


class TokenContract(ProviderContract):
    """For providers that authenticate with the ingress token; ``settings`` is that token."""

    settings = ""
    other_secret = OTHER_TOKEN

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        request = request_of("", self.name, letter)
        return with_headers(request, authorization=f"Bearer {settings or INGRESS_TOKEN}")

    def test_both_secrets_of_a_rotation_are_accepted(self, serve: Serve) -> None:  # type: ignore[override]
        ingress = serve(ingress_token=f"{INGRESS_TOKEN},{OTHER_TOKEN}")
        requests = [self.request(token) for token in (INGRESS_TOKEN, OTHER_TOKEN)]
        assert [ingress.post(each).status_code for each in requests] == [200, 200]

    def test_invalid_settings_stop_the_start(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=r"\.token is unknown"):
            serve(f"[providers.{self.name}]\ntoken = 'x'")

    def test_a_provider_without_settings_is_refused(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        """It needs none: the service always has an ingress token."""
        ingress = serve(f"[providers.{self.name}]", ingress_token=())
        assert ingress.post(self.request(self.settings)).status_code == 401
        made = (ingress.app.service.settings.data_dir / "ingress_token").read_text().strip()
        assert ingress.post(self.request(made)).status_code == 200

    def test_only_the_right_token_is_accepted_before_the_body_is_read(self, serve: Serve) -> None:
        ingress = serve(max_body_mb=0.01)
        request = self.with_proof_of(self.request(self.settings).body + b" " * 11_000)
        wrong = ["", "{}", "Basic {}", "Bearer {}x", "Bearer", "Bearer ", "Bearer \xe9", "Token {}"]
        for authorization in (*wrong, f"Bearer {ADMIN_TOKEN}"):
            answer = ingress.post(with_headers(request, authorization=authorization.format(INGRESS_TOKEN)))
            self.assert_unauthorized(ingress, answer)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        for scheme in ("bearer", "BEARER"):
            answer = ingress.post(with_headers(request, authorization=f"{scheme} {INGRESS_TOKEN}"))
            assert answer.status_code == 413, "the scheme may be in any case"


class TestGmail(TokenContract):
    name = "gmail"

    def test_text_message_id_and_recipients_are_taken_where_they_are_sent(self) -> None:
        request = json_with(
            self.request(self.settings),
            plain="Voilà",
            recipient="Inbox <Inbox@In.example.com>",
            to=["bob@example.org", "Carla <carla@example.org>, dan@example.org"],
            snippet="Voi",
            headers=None,
            reply_to="Desk <desk@example.org>",
            return_path="bounce@example.org",
            in_reply_to="<1@example.org>",
            references="<root@example.org> <1@example.org>",
            thread_id="189f",
        )
        email = email_in(provider_of("", "gmail"), request)
        assert (email.body, email.plain) == (LETTER.html, "Voilà")
        assert email.message_id == LETTER.message_id
        assert email.recipients == ("inbox@in.example.com",)
        assert email.to == ("bob@example.org", "carla@example.org", "dan@example.org")
        assert (email.reply_to, email.return_path) == (("desk@example.org",), "bounce@example.org")
        assert (email.in_reply_to, email.thread, email.provider_thread) == ("1@example.org", "root@example.org", "189f")
        kept = {"in_reply_to": "<1@example.org>", "references": "<root@example.org> <1@example.org>", "snippet": "Voi"}
        assert email.extra == {"message_id": LETTER.message_id, **kept}

    @pytest.mark.parametrize(
        ("sent", "html", "plain"),
        [
            ({"html": "<p>Voilà</p>", "plain": "Voilà"}, "<p>Voilà</p>", "Voilà"),
            ({"html": "Fish &amp; chips"}, "Fish &amp; chips", ""),
            ({"plain": "<p>Voilà</p>"}, "", "<p>Voilà</p>"),
            ({"body": "Voilà &amp; tout", "body_type": "html"}, "Voilà &amp; tout", ""),
            ({"body": "<p>Voilà</p>", "body_type": "text"}, "", "<p>Voilà</p>"),
            ({"body": "<p>Voilà</p>"}, "<p>Voilà</p>", ""),
            ({"body": "Host &lt;web1&gt; is down", "plain": "Host <web1> is down"}, "Host &lt;web1&gt; is down", None),
            ({"body": "Host <web1> is down"}, "", "Host <web1> is down"),
            ({"body": "a<b or x>1"}, "", "a<b or x>1"),
            ({"body": "The <style> element", "plain": ""}, "", "The <style> element"),
            ({"body": "Host <web1>\r\nis down\r\n", "plain": "Host <web1>\nis down"}, "", "Host <web1>\r\nis down\r\n"),
            ({"body": "Host <web1> is down", "plain": "Host"}, "", "Host <web1> is down"),
            ({"body": "a > b", "plain": "a > b", "body_type": "html"}, "", "a > b"),
            ({"html": "Host <web1> is down", "plain": "Host <web1> is down"}, "", "Host <web1> is down"),
            ({"html": "<p>Voilà</p>", "body": "another"}, "<p>Voilà</p>", "another"),
        ],
    )
    def test_what_the_script_says_of_the_body_counts_and_what_it_does_not_say_loses_no_text(
        self, sent: dict[str, str], html: str, plain: str | None
    ) -> None:
        nothing = dict.fromkeys(("html", "plain", "body"))
        email = email_in(provider_of("", "gmail"), json_with(self.request(self.settings), **(nothing | sent)))
        assert (email.html, email.plain) == (html, sent["plain"] if plain is None else plain)

    def test_an_unknown_body_type_is_refused(self, serve: Serve) -> None:
        answer = serve().post(json_with(self.request(self.settings), body="x", body_type="markdown"))
        assert (answer.status_code, answer.get_json()["field"]) == (400, "body_type")
        assert answer.get_json()["error"].startswith("body_type must be 'html', 'text'")

    def test_two_texts_that_differ_in_what_may_be_a_tag_are_two_emails(self, serve: Serve) -> None:
        ingress = serve()
        nothing = dict.fromkeys(("html", "plain", "message_id"))
        bodies = [f"Host <web{number}> is down" for number in (1, 2, 1)]
        requests = [json_with(self.request(self.settings), **nothing, body=body) for body in bodies]
        assert [ingress.status_of(each) for each in requests] == ["processed", "processed", "already_processed"]
        assert [payload["body_preview"] for payload in ingress.delivered] == bodies[:2]

    def test_a_named_second_one_has_an_address_of_its_own(self, serve: Serve) -> None:
        ingress = serve("[providers.gmail-of-ada]\ntype = 'gmail'")
        request = request_of("[providers.gmail-of-ada]\ntype = 'gmail'", "gmail-of-ada")
        assert request.path == "/api/ingress/gmail-of-ada"
        assert ingress.status_of(request) == "processed"
