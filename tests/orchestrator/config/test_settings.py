"""The environment: what each setting accepts, and how a wrong value is reported."""

from ipaddress import ip_network
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from deduplication.subject_group import GroupMode
from orchestrator.config.settings import Settings, SettingsError, load_settings, log_where_settings_come_from, misspelt

STRONG = "abcdefgh" * 2  # just enough
SECRET, KEY = "s3cr3t-that-must-not-be-shown", "A" * 32


def problem(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    return str(raised.value)


def test_the_environment_overrides_dotenv(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Path(".env").write_text("PORT=9000\nTIMEZONE=Europe/Paris\nFOR_SOMEBODY_ELSE=1\nREDIS_ULR=x\n")
    monkeypatch.setenv("PORT", "9001")
    settings = load_settings()
    assert (settings.port, settings.timezone) == (9001, ZoneInfo("Europe/Paris"))
    with caplog.at_level("INFO"):
        log_where_settings_come_from()
    messages = [record.message for record in caplog.records]
    assert messages[0] == f"settings also come from {Path('.env').resolve()}"
    assert messages[1] == "WARNING: REDIS_ULR is not a setting; did you mean REDIS_URL?"


def test_a_wrong_value_in_dotenv_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("PORT=none\n")
    assert problem(monkeypatch) == "PORT must be 1 to 65535, got 'none'"
    Path(".env").write_bytes(b"PORT=\xff\n")
    assert ".env must be readable, in UTF-8" in problem(monkeypatch)


def test_names_that_are_almost_a_setting_are_recognised() -> None:
    meant = {
        "WEBHOOK_ULR": "WEBHOOK_URL",
        "redis_ulr": "REDIS_URL",
        "DATADIR": "DATA_DIR",
        "INGRES_TOKEN": "INGRESS_TOKEN",
        "MAILONCE_WEBHOOK_URL": "WEBHOOK_URL",
    }
    assert misspelt(meant) == meant


def test_an_ordinary_environment_makes_no_noise() -> None:
    others = """
        HOME HOSTNAME PATH PWD OLDPWD SHELL SHLVL TERM TZ USER LANG LC_ALL LOGNAME MAIL EDITOR PAGER DISPLAY COLORTERM
        XDG_DATA_DIRS XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME DATABASE_URL GITHUB_TOKEN CI DEBUG http_proxy
        PYTHONPATH PYTHONUNBUFFERED VIRTUAL_ENV SSH_AUTH_SOCK JOURNAL_STREAM INVOCATION_ID STATE_DIRECTORY GHOST
        KUBERNETES_PORT KUBERNETES_SERVICE_HOST REDIS_PORT REDIS_SERVICE_HOST MAILONCE_PORT MAILONCE_SERVICE_PORT
        WEBHOOK_SECRET_CRM CRM_SECRET MAILGUN_SIGNING_KEY POSTS PORTS HOSTS
    """
    ours = [name.upper() for name in Settings.model_fields]
    assert misspelt([*others.split(), *ours]) == {}


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        ("INGRESS_TOKEN", f" {STRONG} , {STRONG}b,", "ingress_token", (STRONG, f"{STRONG}b")),
        ("SUBJECT_GROUPS", "all", "subject_groups", GroupMode.ALL),
        ("TIMEZONE", "Europe/Paris", "timezone", ZoneInfo("Europe/Paris")),
        ("LEASE_SECONDS", "2.5", "lease_ms", 2500),
        ("PROCESSED_IDS_DAYS", "30", "ids_kept_ms", 30 * 24 * 3600 * 1000),
        ("LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("TRUSTED_PROXIES", "::1, 10.0.0.0/8", "trusted_proxies", (ip_network("::1"), ip_network("10.0.0.0/8"))),
        ("PORT", "", "port", 8000),
        ("PUBLIC_URL", "https://mail.example.org/inbound/", "public_url", "https://mail.example.org/inbound"),
    ],
)
def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, read: Any) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load_settings(), field) == read


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("REDIS_URL", f"http://user:{SECRET}@localhost", "redis://"),
        ("REDIS_TIMEOUT_MS", "0", "10 to 60000 milliseconds"),
        ("ADMIN_TOKEN", f"{SECRET},short", "; token 2 has 5 characters, 5 of them different"),
        ("VIEW_TOKEN", "abcdefg" * 3, "; token 1 has 21 characters, 7 of them different"),
        ("METRICS_TOKEN", STRONG[:15], "; token 1 has 15 characters, 8 of them different"),
        ("WEBHOOK_URL", f"ftp://user:{SECRET}@crm.example", "http:// or https://"),
        ("DELIVER_BY", "queue", "requests or workers"),
        ("PUBLIC_URL", "mail.example.org", "http:// or https://"),
        ("WEBHOOK_SECRET", f"whsec_{KEY},{SECRET}", "Standard Webhooks secrets"),
        ("PUBLIC_URL", "https://mail.example.org/?a=b", "without a query"),
        ("PUBLIC_URL", f"https://user:{SECRET}@mail.example.org", "without a query"),
        ("LOG_FORMAT", "xml", "text or json"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,nginx", "addresses or networks such as"),
        ("MAILONCE_CONFIG", "no/such/file.toml", "the path of an existing file"),
        ("TIMEZONE", "../../etc/passwd", "IANA time zone"),
        ("TIMEZONE", "Europe", "IANA time zone"),
        ("SUBJECT_GROUPS", "some", "patterns, all or off"),
        ("SUBJECT_GROUP_TTL_SECONDS", "1h", "seconds, 0 for the calendar month"),
        ("PROCESSED_IDS_DAYS", "-1", "0 to 36600 days, 0 for ever"),
        ("LEASE_SECONDS", "nan", "2 to 3600 seconds"),
        ("PAYLOAD_MB", "0", "up to 1048576 megabytes"),
        ("MEMORY_LIMIT_MB", "lots", "megabytes"),
        ("SERVICE_STARTED_AT", "2026-11-16T09:00:00", "a time such as 2026-11-16T09:00:00Z"),
        ("LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING or ERROR"),
        ("PORT", "0", "1 to 65535"),
        ("WEB_THREADS", "1000", "1 to 256"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, takes: str
) -> None:
    line = problem(monkeypatch, **{name: value})
    assert line.startswith(f"{name} must be ")
    assert takes in line
    assert "\n" not in line and SECRET not in line


def test_settings_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    line = problem(monkeypatch, REDIS_URL="redis+cluster://localhost:6379", KEY_PREFIX="acme:")
    assert line == "KEY_PREFIX must begin with a hash tag such as {mailonce}: on a Redis Cluster"
    line = problem(monkeypatch, KEY_PREFIX="{acme}:", VIEW_TOKEN=STRONG, ADMIN_TOKEN=f"{STRONG}b,{STRONG}")
    assert line == "VIEW_TOKEN must differ from the tokens of ADMIN_TOKEN and INGRESS_TOKEN"


def test_several_wrong_values_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = problem(monkeypatch, PORT="x", LEASE_SECONDS="z")
    assert line == "LEASE_SECONDS must be 2 to 3600 seconds, got 'z'; PORT must be 1 to 65535, got 'x'"


def test_secrets_are_not_in_the_repr_of_settings() -> None:
    settings = load_settings(
        redis_url=f"redis://:{SECRET}@localhost",
        webhook_url=f"https://{SECRET}@x",
        admin_token=SECRET,
        view_token=f"{SECRET}v",
    )
    assert SECRET not in repr(settings) and KEY not in repr(settings)
