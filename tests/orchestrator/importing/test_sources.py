"""Emails in files, including damaged and hostile ones."""

from __future__ import annotations

import mailbox
import os
import tracemalloc
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.identity import compute_fingerprint, own_names
from deduplication.mime import parse_mime
from orchestrator.importing import sources
from orchestrator.importing.sources import NoSource, Piece, Source, open_source

MB = 1024 * 1024
SEPARATOR = b"From - Mon Nov 16 09:00:00 2026\n"


def message(number: int, text: str = "Hello") -> EmailMessage:
    made = EmailMessage()
    made["Subject"], made["From"] = f"Mail {number}", "Ada <ada@example.org>"
    made["Date"], made["Message-ID"] = f"Mon, {number % 28 + 1:02} Nov 2026 09:00:00 +0000", f"<m{number}@example.org>"
    made.set_content(f"{text}\n")
    return made


def read(path: Path, after: str = "", most_bytes: int = MB) -> list[Piece]:
    return list(open_source(path, most_bytes).pieces(after))


def subjects(pieces: list[Piece]) -> list[str]:
    return [parse_mime(piece.raw).subject for piece in pieces]


@pytest.fixture
def mbox(tmp_path: Path) -> Path:
    """As Python's own mailbox writes it."""
    path = tmp_path / "inbox"
    box = mailbox.mbox(path)
    for number in range(5):
        box.add(message(number, "From now on\n\nFrom - Mon Nov 16 09:00:00 2026\nwe quote"))
    box.close()
    return path


def test_an_mbox_is_split_and_each_email_reads_as_it_came(mbox: Path) -> None:
    pieces = read(mbox)
    assert subjects(pieces) == [f"Mail {number}" for number in range(5)]
    assert all(piece.read <= mbox.stat().st_size for piece in pieces)
    came, found = parse_mime(message(3, "From now on\n\nFrom - Mon Nov 16 09:00:00 2026\nwe quote").as_bytes()), None
    found = parse_mime(pieces[3].raw)
    assert compute_fingerprint(found) == compute_fingerprint(came), "a quoted From is as it was"
    assert own_names(found, None) == own_names(came, None)


def test_every_place_in_an_mbox_can_be_gone_on_from(mbox: Path) -> None:
    pieces = read(mbox)
    for number, piece in enumerate(pieces, 1):
        assert read(mbox, piece.after) == pieces[number:]


def test_a_place_that_is_none_any_more_is_not_gone_on_from(mbox: Path) -> None:
    after = read(mbox)[1].after
    content = mbox.read_bytes()
    mbox.write_bytes(content[: int(after)] + b"X" + content[int(after) :])
    assert len(read(mbox, after)) == len(read(mbox)) >= 3
    assert len(read(mbox, str(10**12))) == len(read(mbox))


def test_a_separator_follows_on_an_empty_line(tmp_path: Path) -> None:
    """Somebody writes about one, and his mail program has not quoted it."""
    (tmp_path / "box").write_bytes(SEPARATOR + b"Subject: One\n\nYou wrote:\n" + SEPARATOR + b"Subject: Two\n\n")
    assert subjects(read(tmp_path / "box")) == ["One"]


def test_a_message_of_any_size_takes_no_more_memory_than_one_may(tmp_path: Path) -> None:
    path = tmp_path / "box"
    path.write_bytes(SEPARATOR + b"Subject: Large\n\n" + (b"x" * 99 + b"\n") * 300_000)
    source = open_source(path, MB)
    tracemalloc.start()
    try:
        (piece,) = source.pieces("")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert piece.error
    assert most_bytes < 8 * MB


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    "separator",
    [
        b"From - Mon Nov 16 09:00:00 2026",
        b"From ada@example.org Mon Nov 16 09:00:00 2026",
        b"From 1761@xxx Mon Nov 16 09:00:00 +0000 2026",
        b"From MAILER-DAEMON Mon Nov  2 09:00:00 2026",
        b"From ada@example.org  Mon, 16 Nov 2026 09:00:00 +0000",
    ],
)
def test_the_separators_of_all_programs_are_known(tmp_path: Path, separator: bytes, ending: bytes) -> None:
    one = separator + b"\nSubject: Mail\n\nFrom now on, Mon to Fri\n\nFrom Ada, on Mon\n\n"
    (tmp_path / "box").write_bytes((one * 3).replace(b"\n", ending))
    assert subjects(read(tmp_path / "box")) == ["Mail"] * 3


def test_a_message_that_is_too_large_is_passed_over_and_named(tmp_path: Path) -> None:
    path = tmp_path / "box"
    large = b"Subject: Large\n\n" + b"x" * 5000 + b"\n\n"
    path.write_bytes(SEPARATOR + large + SEPARATOR + b"Subject: Small\n\nx\n\n")
    first, second = read(path, most_bytes=1000)
    assert (first.where, first.raw) == ("message at byte 0", b"")
    assert "MAX_BODY_MB" in first.error
    assert second.raw.startswith(b"Subject: Small")


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows on a piece of a line begins no message, whatever it looks like."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", len(SEPARATOR))
    path = tmp_path / "box"
    filler = b"\n" + b"x" * (len(SEPARATOR) - 1) + b"x" * len(SEPARATOR)
    path.write_bytes(SEPARATOR + b"Subject: A\n" + filler + SEPARATOR + b"\n" + SEPARATOR + b"Subject: B\n\n")
    assert subjects(read(path)) == ["A", "B"]
    path.write_bytes(SEPARATOR + b"Subject: A\n\n" + b"x" * len(SEPARATOR) + b"\n" + SEPARATOR + b"Subject: B\n\n")
    assert subjects(read(path)) == ["A"], "the end of a long line is no empty one"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"Subject: no mbox\n\n", b"From now on we meet at 09:00\n", b"\x00" * 100, b"From \xff\n"],
)
def test_what_is_no_mbox_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "box").write_bytes(content)
    with pytest.raises(NoSource, match="is not an mbox"):
        open_source(tmp_path / "box", MB)


@given(st.lists(st.sampled_from([SEPARATOR, b"\n", b"x", b">From \n", b"From \n", b"\r\n", b"\x00", b"Subject: a\n"])))
def test_no_mbox_breaks_it_and_every_place_leads_on(parts: list[bytes]) -> None:
    path = Path("hostile")
    path.write_bytes(SEPARATOR + b"".join(parts))
    pieces = list(Source(path, "mbox", 20).pieces(""))
    assert pieces
    assert pieces[-1].read == path.stat().st_size
    for number, piece in enumerate(pieces, 1):
        assert list(Source(path, "mbox", 20).pieces(piece.after)) == pieces[number:]


def test_a_maildir_is_read_in_the_order_of_its_files_whatever_their_flags(tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "box")
    for number in range(4):
        kept = mailbox.MaildirMessage(message(number))
        if number % 2:
            kept.set_subdir("cur")
            kept.add_flag("S")
        box.add(kept)
    pieces = read(tmp_path / "box")
    assert sorted(subjects(pieces)) == [f"Mail {number}" for number in range(4)]
    for path in (tmp_path / "box" / "new").iterdir():
        path.rename(tmp_path / "box" / "cur" / f"{path.name}:2,RS")
    again = read(tmp_path / "box", pieces[1].after)
    assert subjects(again) == subjects(pieces[2:]), "what was read has another name now, and is the same"


def test_a_folder_is_read_with_those_below_and_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one.eml").write_bytes(message(1).as_bytes())
    (tmp_path / "a" / "two.EML").write_bytes(message(2).as_bytes())
    (tmp_path / "a" / "notes.txt").write_bytes(b"no email")
    os.mkfifo(tmp_path / "a" / "pipe.eml")
    (tmp_path / "a" / "gone.eml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "round").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "large.eml").write_bytes(b"x" * (MB + 1))
    pieces = read(tmp_path / "a")
    assert subjects([piece for piece in pieces if not piece.error]) == ["Mail 1", "Mail 2"]
    errors = {Path(piece.where).name: piece.error for piece in pieces if piece.error}
    assert errors.keys() == {"pipe.eml", "gone.eml", "large.eml"}
    assert "not a regular file" in errors["pipe.eml"]
    assert subjects(read(tmp_path / "a" / "b" / "one.eml")) == ["Mail 1"]


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_csv_is_read_with_its_columns_in_any_order_and_case(tmp_path: Path, between: str) -> None:
    path = tmp_path / "ids.csv"
    rows = [["\ufeffDate", " Message_ID ", "other"], ["2026-11-16", '"<a,b;c@example.org>"', "x"], [], ["", "<m2>"]]
    path.write_text("\r\n".join(between.join(row) for row in rows))
    first, second = read(path)
    assert first.row == {"date": "2026-11-16", "message_id": "<a,b;c@example.org>", "other": "x"}
    assert second.row == {"date": "", "message_id": "<m2>"}
    assert (first.where, read(path, first.after)) == ("row 2", [second])


def test_a_row_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    long = b'"' + b"x" * 300_000 + b'"'
    path.write_bytes(b"message_id\n\xff\xfe\n" + long + b"\na\x00b\none,too many\n<m9>\n")
    pieces = read(path)
    assert [piece.row["message_id"] for piece in pieces if piece.row][-2:] == ["ab", "<m9>"]
    assert [piece.error for piece in pieces if piece.error][-1] == "more fields than the first line"


def test_what_cannot_be_a_source_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NoSource, match="neither a file nor a folder"):
        open_source(tmp_path / "pipe", MB)
