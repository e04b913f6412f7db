"""Which providers are open, and what mailonce.toml may say about them."""

from pathlib import Path

import pytest

from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import SettingsError, load_settings
from routes.providers.base import Surroundings
from routes.providers.registry import TYPES, open_providers
from tests.routes.providers.conftest import Fetches, Serve


def check(config: Config) -> None:
    open_providers(config, Surroundings((), Fetches()))


def test_by_default_only_providers_with_the_ingress_token_are_enabled(serve: Serve) -> None:
    ingress = serve()
    statuses = {name: ingress.app.http.post(f"/api/ingress/{name}").status_code for name in (*TYPES, "message")}
    assert {name for name, status in statuses.items() if status == 401} == {"gmail", "mime", "message"}
    assert {name for name, status in statuses.items() if status == 404} == set(TYPES) - {"gmail", "mime"}


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[providers.unknown]", rf"providers\.unknown\.type must be one of {', '.join(TYPES)}"),
        ("[providers.x]\ntype = 'unknown'", r"providers\.x\.type must be one of"),
        ("[providers.x]\ntype = ['json']", r"providers\.x\.type must be one of"),
        ("[providers.message]", r"providers\.message has no settings"),
        ("[providers.postmark]\nusername = 'a'\npassword = 5", r"providers\.postmark\.password must be a text"),
        ("[providers.mime]\nattachments = 'all'", r'mime\.attachments must be "link", "inline" or "metadata"'),
    ],
)
def test_an_invalid_section_is_reported_by_its_name(tmp_path: Path, toml: str, complaint: str) -> None:
    path = tmp_path / "mailonce.toml"
    path.write_text(toml)
    with pytest.raises(SettingsError, match=complaint):
        check(load_config(load_settings(mailonce_config=path)))


def test_secrets_are_not_shown() -> None:
    secret = "s3cr3t-that-must-not-be-shown"
    with pytest.raises(SettingsError) as raised:
        check(Config(providers={"resend": {"secret": secret}}))
    assert secret not in str(raised.value)
    config = Config(providers={"postmark": {"username": "u", "password": secret}})
    check(config)
    assert secret not in repr(config)


def test_a_secret_may_come_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "mailonce.toml"
    path.write_text("[providers.mailgun]\nsigning_key = ['env:OLD', 'env:NEW']")
    settings = load_settings(mailonce_config=path)
    check(load_config(settings, {"OLD": "old", "NEW": "new"}))
    with pytest.raises(SettingsError, match=r'providers\.mailgun\.signing_key.* variable "NEW", which is not'):
        check(load_config(settings, {"OLD": "old", "NEW": ""}))
