"""mailonce sample <provider>: a request that works, as a line for the shell."""

from datetime import datetime
from pathlib import Path

import pytest

from routes.providers.registry import AnyProvider
from routes.providers.samples import SampleRequest, curl_line, sample_letter
from tests.routes.conftest import Run
from tests.routes.providers.conftest import NOW, Ingress, Serve, provider_of
from tests.routes.providers.everyone import SETTINGS, WITH_SAMPLES
from tests.routes.providers.test_json_mapping import DESK
from tests.routes.providers.test_resend import WITH_KEY, WITHOUT_KEY
from tests.routes.providers.test_sendgrid import KEYS, public
from tests.support.curl import read_curl
from tests.support.server import INGRESS_TOKEN


def sample(provider: AnyProvider, now: datetime) -> SampleRequest:
    return provider.sample(sample_letter(now), now)


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_the_line_makes_the_shell_send_a_request_that_is_accepted(serve: Serve, name: str) -> None:
    request = sample(provider_of(SETTINGS, name), NOW)
    read = read_curl(curl_line(request, "http://127.0.0.1:8000/"))
    assert read.url == f"http://127.0.0.1:8000/api/ingress/{name}"
    assert (read.headers, read.body) == (request.headers, request.body)
    assert serve(SETTINGS).status_of(request) == "processed"


@pytest.mark.parametrize(
    ("toml", "name"), [(DESK, "desk"), (f"{DESK}\nitems = 'events'", "desk"), (WITHOUT_KEY, "resend")]
)
def test_so_is_a_sample_with_other_settings(serve: Serve, toml: str, name: str) -> None:
    assert serve(toml).status_of(sample(provider_of(toml, name), NOW)) == "processed"


@pytest.mark.parametrize(
    ("toml", "name", "why"),
    [
        (SETTINGS, "ses", "Amazon SNS signs"),
        (f"[providers.sendgrid]\nverification_key = '{public(KEYS[0])}'", "sendgrid", "SendGrid signs"),
        (WITH_KEY, "resend", "fetched from Resend"),
    ],
)
def test_what_only_the_provider_can_make_is_refused_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, name: str, why: str
) -> None:
    config = tmp_path / "mailonce.toml"
    config.write_text(f"[destinations.crm]\nurl = 'log:'\n{toml}")
    monkeypatch.setenv("MAILONCE_CONFIG", str(config))
    for token in ("INGRESS_TOKEN", "ADMIN_TOKEN"):
        monkeypatch.setenv(token, INGRESS_TOKEN)
    refused = run("sample", name)
    assert refused.exit_code == 1
    assert why in refused.output


def test_each_second_it_is_another_email(serve: Serve) -> None:
    provider = provider_of(SETTINGS, "postmark")
    ingress: Ingress = serve(SETTINGS, subject_groups="all")
    requests = [sample(provider, moment) for moment in (NOW, NOW, NOW.replace(second=1))]
    assert [ingress.status_of(each) for each in requests] == ["processed", "already_processed", "processed"]
