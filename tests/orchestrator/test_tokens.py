"""The bearer tokens: given, or made once and kept where only the owner reads them."""

import threading
from pathlib import Path

import pytest

from orchestrator.config.settings import Settings, SettingsError, load_settings
from orchestrator.data_dir import Tokens, ensure_tokens, ingress_token_file
from tests.support.programs_loaded import run_at_once

ONE, OTHER, ADMIN = "one-ingress-token", "other-ingress-token", "one-admin-token-of-tests"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path)


def test_configured_tokens_are_used_and_nothing_is_written(tmp_path: Path) -> None:
    given = load_settings(data_dir=tmp_path, ingress_token=f"{ONE},{OTHER}", admin_token=ADMIN)
    assert ensure_tokens(given) == Tokens(ingress=(ONE, OTHER), admin=(ADMIN,))
    assert list(tmp_path.iterdir()) == []
    tokens = ensure_tokens(load_settings(data_dir=tmp_path, ingress_token=ONE))
    assert tokens.ingress == (ONE,)
    assert [path.name for path in tokens.new] == ["admin_token"], "only the missing one is generated"


def test_an_operators_own_file_is_read_without_its_line_end(settings: Settings) -> None:
    ingress_token_file(settings).write_text("an-operators-own-token\r\n")
    assert ensure_tokens(settings).ingress == ("an-operators-own-token",)


STRONG = b"an-operators-own-token"
UNPRINTABLE = [STRONG + end for end in (b"\n" + STRONG, b"\r\n# mine", b"\x00", b"\x1b[0m", b"\xff", "é".encode())]


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe\x00binary", b"too-short", b"a" * 40, *UNPRINTABLE])
def test_a_file_without_a_strong_token_stops_the_start(settings: Settings, content: bytes) -> None:
    ingress_token_file(settings).write_bytes(content)
    with pytest.raises(SettingsError, match="ingress_token.*delete it") as raised:
        ensure_tokens(settings)
    assert "\n" not in str(raised.value)
    assert not content.strip() or content.decode("latin-1") not in str(raised.value)


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="DATA_DIR must be a writable folder"):
        ensure_tokens(load_settings(data_dir=tmp_path / "missing"))
    ingress_token_file(load_settings(data_dir=tmp_path)).mkdir()
    with pytest.raises(SettingsError, match="DATA_DIR must be a writable folder"):
        ensure_tokens(load_settings(data_dir=tmp_path))


def _start(folders: list[Path], barrier: threading.Barrier) -> list[Tokens]:
    made = []
    for folder in folders:
        barrier.wait(60)
        made.append(ensure_tokens(load_settings(data_dir=folder)))
    return made


def test_processes_that_start_at_once_agree_and_one_of_them_shows_the_tokens(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(20)]
    for folder in folders:
        folder.mkdir()
    for started in zip(*run_at_once(4, _start, folders), strict=True):
        ((ingress, admin),) = {(tokens.ingress, tokens.admin) for tokens in started}
        assert ingress != admin and all(len(token) >= 24 for token in (*ingress, *admin))
        assert sorted(path.name for tokens in started for path in tokens.new) == ["admin_token", "ingress_token"]
