"""examples/compose, as YAML: there is no docker in the tests. tests/deploy has what holds for deploy/ as well."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.settings import Settings
from tests.support.programs import program
from tests.support.surroundings import ROOT, output_of

FOLDER = ROOT / "examples/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+)(:[?-])?")


def mounts(service: str) -> list[tuple[str, str]]:
    """From where to where."""
    return [(source, target) for source, target, *_ in (text.split(":") for text in SERVICES[service]["volumes"])]


def test_all_that_is_mounted_exists() -> None:
    for name in SERVICES:
        for source, target in mounts(name):
            assert target.startswith("/")
            if source.startswith("."):
                assert (FOLDER / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]


def test_ports_are_open_on_this_machine_alone_and_each_once() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:3000:3000", "127.0.0.1:8000:8000", "127.0.0.1:9090:9090"]


def test_each_waits_until_what_it_needs_is_healthy() -> None:
    assert SERVICES["worker"]["healthcheck"] == {"disable": True}, "the image's asks a web server"
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            assert how == {"condition": "service_healthy"}


def test_every_variable_is_in_env_example_and_every_setting_is_one() -> None:
    asked = {name for name, _ in VARIABLE.findall((FOLDER / "compose.yaml").read_text())}
    asked |= {secret["environment"] for secret in COMPOSE["secrets"].values()}
    given = set(re.findall(r"^(\w+)=$", (FOLDER / "env.example").read_text(), re.MULTILINE))
    assert asked == given
    assert set(SERVICES["web"]["environment"]) <= {name.upper() for name in Settings.model_fields}
    needed = {name for name, how in VARIABLE.findall((FOLDER / "compose.yaml").read_text()) if how == ":?"}
    assert needed == {"INGRESS_TOKEN", "ADMIN_TOKEN", "METRICS_TOKEN", "REDIS_PASSWORD", "GRAFANA_PASSWORD"}


def test_prometheus_scrapes_the_server_with_its_token(tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (targets,) = job["static_configs"]
    assert [target.split(":")[0] for target in targets["targets"]] == ["web"]
    assert SERVICES["web"]["environment"]["PORT"] == targets["targets"][0].split(":")[1]
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    at = {target: FOLDER / source for source, target in mounts("prometheus")}
    for name in ("prometheus.yml", *config["rule_files"]):
        text = at[f"/etc/prometheus/{name}"].read_text()
        (tmp_path / name).write_text(text.replace("/run/secrets/", ""))
    (tmp_path / secret).write_text("metrics-token-for-tests")
    command = [program("promtool", "prometheus"), "check", "config", str(tmp_path / "prometheus.yml")]
    output_of(command)


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    at = {target: FOLDER / source for source, target in mounts("grafana")}
    (source,) = yaml.safe_load(at["/etc/grafana/provisioning/datasources/mailonce.yaml"].read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load(at["/etc/grafana/provisioning/dashboards/mailonce.yaml"].read_text())["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    assert json.loads(at[home].read_text())["title"] == "Mailonce"


def test_every_example_is_listed_and_has_a_readme() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1/\)", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    folders = [path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(listed) == sorted(folders)
    assert all((ROOT / "examples" / name / "README.md").is_file() for name in folders)
