"""mailonce sample <provider>: a request that works, as a line for the shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from routes.providers.samples import SampleUnavailable, curl_line, sample
from tests.routes.providers.conftest import NOW, Door, OpenDoor, provider_of
from tests.routes.providers.everyone import PLAINLY, SETTINGS
from tests.routes.providers.test_json_mapping import DESK
from tests.routes.providers.test_resend import WITH_KEY, WITHOUT_KEY
from tests.routes.providers.test_sendgrid import KEYS, public


@pytest.mark.parametrize("name", PLAINLY)
def test_a_sample_of_each_provider_is_taken(open_door: OpenDoor, name: str) -> None:
    door = open_door(SETTINGS)
    assert door.status_of(sample(provider_of(SETTINGS, name), NOW)) == "processed"


@pytest.mark.parametrize(
    ("toml", "name"), [(DESK, "desk"), (f"{DESK}\nitems = 'events'", "desk"), (WITHOUT_KEY, "resend")]
)
def test_so_is_one_with_settings_of_its_own(open_door: OpenDoor, toml: str, name: str) -> None:
    assert open_door(toml).status_of(sample(provider_of(toml, name), NOW)) == "processed"


@pytest.mark.parametrize(
    ("toml", "name", "why"),
    [
        (SETTINGS, "ses", "Amazon SNS signs"),
        (f"[providers.sendgrid]\nverification_key = '{public(KEYS[0])}'", "sendgrid", "SendGrid signs"),
        (WITH_KEY, "resend", "fetched from Resend"),
    ],
)
def test_what_only_the_provider_can_make_is_refused_with_the_reason(toml: str, name: str, why: str) -> None:
    with pytest.raises(SampleUnavailable, match=why):
        sample(provider_of(toml, name), NOW)


@pytest.mark.parametrize("name", PLAINLY)
def test_the_line_makes_the_shell_send_exactly_that(name: str, tmp_path: Path) -> None:
    """A curl that writes down what it is told, found before any other."""
    curl = tmp_path / "curl"
    curl.write_text(
        '#!/bin/sh\nfor each; do printf "%s\\0" "$each"; done > told\ncase "$*" in *@-) cat > sent;; esac\n'
    )
    curl.chmod(0o755)
    request = sample(provider_of(SETTINGS, name), NOW)
    line = curl_line(request, "http://127.0.0.1:8000/")
    subprocess.run(["sh", "-c", line], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    told = (tmp_path / "told").read_bytes().decode().split("\0")
    assert f"http://127.0.0.1:8000/api/ingress/{name}" in told
    assert [told[place + 1] for place, each in enumerate(told) if each == "-H"] == [
        f"{header}: {value}" for header, value in request.headers.items()
    ]
    sent = tmp_path / "sent"
    body = sent.read_bytes() if sent.exists() else told[told.index("--data-binary") + 1].encode()
    assert body == request.body
    assert "\n" not in line or not sent.exists()


def test_each_second_it_is_another_email(open_door: OpenDoor) -> None:
    provider = provider_of(SETTINGS, "postmark")
    door: Door = open_door(SETTINGS, subject_groups="all")
    requests = [sample(provider, moment) for moment in (NOW, NOW, NOW.replace(second=1))]
    assert [door.status_of(each) for each in requests] == ["processed", "already_processed", "processed"]
