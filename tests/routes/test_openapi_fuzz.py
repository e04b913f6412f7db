"""schemathesis over the description, against a real server: nothing is answered 5xx, or otherwise than described."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.routes.providers.everyone import SETTINGS
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.surroundings import ROOT, clean_environment

VIEW_TOKEN = "view-token-for-tests-only"
SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
RULES = """
[checks]
positive_data_acceptance.enabled = false    # a cursor is any text, but not every text is a cursor
allow_header_conformance.enabled = false    # POST .../decisions/release is next to GET .../decisions/{id}

[[operations]]
include-path-regex = "^/api/ingress/"    # 503 asks the sender to come again; what is odd in an email is let be
[operations.checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
negative_data_rejection.enabled = false

[[operations]]
include-path-regex = "^/(health|readyz)$"    # 503 is what they are asked for
[operations.checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
"""
LOGIN = f"""
[auth.openapi.ingressToken]
bearer = "{INGRESS_TOKEN}"
[auth.openapi.login]
username = "sender"
password = "password"
"""
ADMIN = f"""
[auth.openapi.adminToken]
bearer = "{ADMIN_TOKEN}"
[auth.openapi.metricsToken]
bearer = "{ADMIN_TOKEN}"
"""
VIEWER = f"""
[auth.openapi.adminToken]
bearer = "{VIEW_TOKEN}"
[auth.openapi.viewToken]
bearer = "{VIEW_TOKEN}"
"""

REAL_ONES = """
[[operations]]
include-path-regex = "^/api/admin/destinations/"
parameters = {{ name = "crm" }}
[[operations]]
include-path-regex = "^/api/admin/decisions/"
parameters = {{ id = "{id}" }}
[[operations]]
include-path-regex = "^/api/admin/deliveries/"
parameters = {{ id = "{id}:crm" }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With all providers."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "mailonce.toml").write_text(f'[destinations.crm]\nurl = "log:"\n{SETTINGS}')
    with Server(folder, VIEW_TOKEN=VIEW_TOKEN, LOG_LEVEL="WARNING", TRUSTED_PROXIES="127.0.0.1") as server:
        yield server


@pytest.mark.parametrize(
    ("credentials", "phases", "examples"),
    [
        pytest.param(ADMIN + LOGIN + REAL_ONES, "coverage,fuzzing", 2, id="an-admin"),
        pytest.param(VIEWER, "fuzzing", 2, id="a-viewer"),
        pytest.param("", "fuzzing", 2, id="a-stranger"),
    ],
)
def test_every_request_gets_an_answer_as_described(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest, credentials: str, phases: str, examples: int
) -> None:
    server.post(email(subject="Lot 456"))
    stopped = server.post(email(subject="Lot 456 bis")).json()["id"]
    config = tmp_path / "schemathesis.toml"
    config.write_text(credentials.format(id=stopped) + RULES)
    options = ["--phases", phases, "--max-examples", str(examples), "--continue-on-failure"]
    seeded = ["--seed", str(request.config.option.hypothesis_seed), "--generation-database", "none", "--no-color"]
    run = subprocess.run(
        [SCHEMATHESIS, "--config-file", str(config), "run", f"{server.url}/api/openapi.json", *options, *seeded],
        cwd=tmp_path,
        env=clean_environment(SCHEMATHESIS_HOOKS="tests.support.schemathesis_hooks", PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "unexpected error" not in server.log.read_text()
