"""A wrong value stops the start with one line that names the setting and what it takes."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from deduplication.subject_group import GroupMode
from orchestrator.config.settings import Settings, SettingsError, load_settings, log_where_settings_come_from, misspelt

STRONG = "abcdefgh" * 2  # just enough
SECRET = "s3cr3t-that-must-not-be-shown"


def complaint(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    return str(raised.value)


def test_without_an_environment_everything_has_a_default() -> None:
    settings = load_settings()
    assert settings.redis_url == ""
    assert settings.data_dir == Path("data")
    assert (settings.ingress_token, settings.admin_token) == ((), ())
    assert settings.subject_groups is GroupMode.PATTERNS
    assert settings.subject_group_ttl_seconds == 0
    assert settings.tz == ZoneInfo("UTC")
    assert (settings.ids_kept_ms, settings.lease_ms) == (None, 25_000)
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.max_body_mb == 25
    assert settings.config_path is None


def test_a_dotenv_beside_the_start_is_read_and_said_and_the_environment_goes_before_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path(".env").write_text("PORT=9000\nTIMEZONE=Europe/Paris\nFOR_SOMEBODY_ELSE=1\nREDIS_ULR=x\n")
    monkeypatch.setenv("PORT", "9001")
    settings = load_settings()
    assert (settings.port, settings.timezone) == (9001, "Europe/Paris")
    with caplog.at_level("INFO"):
        log_where_settings_come_from()
    said = [record.message for record in caplog.records]
    assert said[0] == f"settings also come from {Path('.env').resolve()}"
    assert said[1] == "WARNING: REDIS_ULR is not a setting; did you mean REDIS_URL?"


def test_a_wrong_value_in_dotenv_is_told_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("PORT=none\n")
    assert complaint(monkeypatch) == "PORT takes 1 to 65535; 'none' is not that"
    Path(".env").write_bytes(b"PORT=\xff\n")
    assert ".env takes settings that can be read, in UTF-8" in complaint(monkeypatch)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("WEBHOOK_ULR", "WEBHOOK_URL"),
        ("REDIS_ULR", "REDIS_URL"),
        ("redis_ulr", "REDIS_URL"),
        ("DATADIR", "DATA_DIR"),
        ("INGRES_TOKEN", "INGRESS_TOKEN"),
        ("MAILONCE_WEBHOOK_URL", "WEBHOOK_URL"),
    ],
)
def test_a_slip_of_the_pen_is_recognised(name: str, meant: str) -> None:
    assert misspelt([name]) == {name: meant}


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
        ("REDIS_URL", "redis://localhost:6379/0", "redis_url", "redis://localhost:6379/0"),
        ("INGRESS_TOKEN", f" {STRONG} , {STRONG}b,", "ingress_token", (STRONG, f"{STRONG}b")),
        ("ADMIN_TOKEN", STRONG, "admin_token", (STRONG,)),
        ("VIEW_TOKEN", f"{STRONG},{STRONG}e", "view_token", (STRONG, f"{STRONG}e")),
        ("SUBJECT_GROUPS", "all", "subject_groups", GroupMode.ALL),
        ("TIMEZONE", "Europe/Paris", "tz", ZoneInfo("Europe/Paris")),
        ("LEASE_SECONDS", "2.5", "lease_ms", 2500),
        ("PROCESSED_IDS_DAYS", "30", "ids_kept_ms", 30 * 24 * 3600 * 1000),
        ("LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("LOG_FORMAT", "json", "log_format", "json"),
        (
            "TRUSTED_PROXIES",
            "127.0.0.1, 10.0.0.0/8",
            "trusted_proxies",
            (ip_network("127.0.0.1"), ip_network("10.0.0.0/8")),
        ),
        ("PORT", "", "port", 8000),
        ("PUBLIC_URL", "https://mail.example.org/inbound/", "public_url", "https://mail.example.org/inbound"),
    ],
)
def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, read: Any) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load_settings(), field) == read


def test_given_settings_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    assert load_settings(port=9001).port == 9001


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("REDIS_URL", "localhost:6379", "redis://"),
        ("REDIS_TIMEOUT_MS", "0", "10 to 60000 milliseconds"),
        ("INGRESS_TOKEN", "short", "at least 16 characters, 8 of them different"),
        ("ADMIN_TOKEN", f"{STRONG},short", "; token 2 has 5 characters, 5 of them different"),
        ("VIEW_TOKEN", "abcdefg" * 3, "; token 1 has 21 characters, 7 of them different"),
        ("METRICS_TOKEN", STRONG[:15], "; token 1 has 15 characters, 8 of them different"),
        ("WEBHOOK_URL", "crm.example/hook", "http:// or https://"),
        ("PUBLIC_URL", "mail.example.org", "http:// or https://"),
        ("PUBLIC_URL", "https://mail.example.org/?a=b", "without a query"),
        ("LOG_FORMAT", "xml", "text or json"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,nginx", "addresses or networks of proxies"),
        ("MAILONCE_CONFIG", "no/such/file.toml", "a file that exists"),
        ("TIMEZONE", "Paris", "IANA time zone"),
        ("TIMEZONE", "../../etc/passwd", "IANA time zone"),
        ("TIMEZONE", "Europe", "IANA time zone"),
        ("SUBJECT_GROUPS", "some", "patterns, all or off"),
        ("SUBJECT_GROUP_TTL_SECONDS", "-1", "seconds up to ten years, 0 for"),
        ("SUBJECT_GROUP_TTL_SECONDS", "1h", "seconds up to ten years, 0 for"),
        ("PROCESSED_IDS_DAYS", "-1", "days up to 36600, 0 for ever"),
        ("LEASE_SECONDS", "1", "2 to 3600 seconds"),
        ("LEASE_SECONDS", "nan", "2 to 3600 seconds"),
        ("MAX_BODY_MB", "0", "megabytes"),
        ("PAYLOAD_MB", "0", "megabytes"),
        ("PAYLOAD_MB", "much", "a quarter of what Redis may use"),
        ("DISK_FREE_MB", "-1", "megabytes"),
        ("MEMORY_LIMIT_MB", "lots", "megabytes"),
        ("LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING or ERROR"),
        ("PORT", "0", "1 to 65535"),
        ("PORT", "http", "1 to 65535"),
        ("WEB_CONCURRENCY", "0", "1 to 64"),
        ("WEB_THREADS", "1000", "1 to 256"),
    ],
)
def test_a_wrong_value_is_named_with_what_the_setting_takes(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, takes: str
) -> None:
    line = complaint(monkeypatch, **{name: value})
    assert line.startswith(f"{name} takes ")
    assert takes in line
    assert "\n" not in line


def test_several_wrong_values_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = complaint(monkeypatch, PORT="x", TIMEZONE="y", LEASE_SECONDS="z")
    assert all(f"{name} takes " in line for name in ("PORT", "TIMEZONE", "LEASE_SECONDS"))
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", f"http://user:{SECRET}@localhost"),
        ("WEBHOOK_URL", f"ftp://user:{SECRET}@crm.example"),
        ("PUBLIC_URL", f"https://user:{SECRET}@mail.example.org"),
        ("INGRESS_TOKEN", f"{SECRET},short"),
        ("ADMIN_TOKEN", f"{SECRET},short"),
    ],
)
def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    line = complaint(monkeypatch, **{name: value})
    assert name in line
    assert SECRET not in line
    assert "short," not in line


def test_every_setting_says_what_it_takes() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_config_file_is_the_one_named_or_the_one_in_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mailonce.toml").touch()
    assert load_settings().config_path == Path("mailonce.toml")
    named = tmp_path / "other.toml"
    named.touch()
    monkeypatch.setenv("MAILONCE_CONFIG", str(named))
    assert load_settings().config_path == named
