"""Emails in files, including damaged and hostile ones."""

import mailbox
import os
import tracemalloc
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.identity import compute_fingerprint, own_names
from orchestrator.importing.sources import Piece, Unreadable, open_source, row_item
from routes.mime import parse_mime

MB = 1024 * 1024
SEPARATOR = b"From - Mon Nov 16 09:00:00 2026\n"
QUOTES = "From now on\n\nFrom - Mon Nov 16 09:00:00 2026\nwe quote"


def message(number: int, text: str = "Hello") -> EmailMessage:
    made = EmailMessage()
    made["Subject"], made["From"] = f"Mail {number}", "Ada <ada@example.org>"
    made["Date"], made["Message-ID"] = f"Mon, {number % 28 + 1:02} Nov 2026 09:00:00 +0000", f"<m{number}@example.org>"
    made.set_content(f"{text}\n")
    return made


def write(content: bytes, name: str = "box") -> Path:
    Path(name).write_bytes(content)
    return Path(name)


def read(path: Path) -> list[Piece]:
    return list(open_source(path, MB))


def subjects(pieces: list[Piece]) -> list[str]:
    return [parse_mime(piece.raw).subject for piece in pieces]


def test_an_mbox_is_split_and_its_emails_are_unchanged(tmp_path: Path) -> None:
    """As Python's own mailbox writes it."""
    box = mailbox.mbox(tmp_path / "inbox")
    for number in range(5):
        box.add(message(number, QUOTES))
    box.close()
    pieces = read(tmp_path / "inbox")
    assert subjects(pieces) == [f"Mail {number}" for number in range(5)]
    original, found = parse_mime(message(3, QUOTES).as_bytes()), parse_mime(pieces[3].raw)
    assert compute_fingerprint(found) == compute_fingerprint(original), "a quoted From is restored"
    assert own_names(found, None) == own_names(original, None)


@given(st.lists(st.sampled_from([SEPARATOR, b"\n", b"x", b">From \n", b"From \n", b"\r\n", b"\x00", b"Subject: a\n"])))
def test_any_mbox_is_read_to_its_end(parts: list[bytes]) -> None:
    pieces = list(open_source(write(SEPARATOR + b"".join(parts) + b"\n\n" + SEPARATOR + b"the end\n"), 20))
    assert pieces[0].where == "message at byte 0"
    assert pieces[-1].raw == b"the end\n"


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
def test_the_separators_of_all_programs_are_known_if_they_follow_an_empty_line(separator: bytes, ending: bytes) -> None:
    quoted = b"You wrote:\n" + separator + b"\nFrom now on, Mon to Fri\n\nFrom Ada, on Mon\n\n"
    box = b"\n\n" + (separator + b"\nSubject: Mail\n\n" + quoted) * 3
    assert subjects(read(write(box.replace(b"\n", ending)))) == ["Mail"] * 3


def test_a_message_that_is_too_large_is_named_and_takes_little_memory() -> None:
    large = SEPARATOR + b"Subject: Large\n\n" + (b"x" * 99 + b"\n") * 120_000 + b"\n"
    box = write(large + SEPARATOR + b"Subject: Small\n\nx\n\n")
    del large
    tracemalloc.start()
    try:
        first, second = read(box)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (first.where, first.raw, "MAX_BODY_MB" in first.error) == ("message at byte 0", b"", True)
    assert second.raw.startswith(b"Subject: Small")
    assert most_bytes < 8 * MB


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"Subject: no mbox\n\n", b"From now on we meet at 09:00\n", b"\x00" * 100, b"From \xff\n"]
)
def test_another_file_or_a_pipe_is_refused(content: bytes) -> None:
    with pytest.raises(Unreadable, match="is not an mbox"):
        open_source(write(content), MB)
    os.mkfifo("pipe")
    with pytest.raises(Unreadable, match="neither a file nor a folder"):
        open_source(Path("pipe"), MB)


def test_a_maildir_is_read(tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "box")
    for number in range(2):
        kept = mailbox.MaildirMessage(message(number))
        kept.set_subdir("cur" if number else "new")
        box.add(kept)
    (tmp_path / "box/cur/.hidden").write_text("no email")
    assert sorted(subjects(read(tmp_path / "box"))) == ["Mail 0", "Mail 1"]


def test_a_folder_is_read_with_its_subfolders_and_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    write(message(1).as_bytes(), "a/b/one.eml")
    write(message(2).as_bytes(), "a/two.EML")
    write(b"no email", "a/notes.txt")
    write(b"x" * (MB + 1), "a/large.eml")
    os.mkfifo("a/pipe.eml")
    Path("a/gone.eml").symlink_to(tmp_path / "nowhere")
    Path("a/round").symlink_to(tmp_path / "a")
    pieces = read(Path("a"))
    assert subjects([piece for piece in pieces if not piece.error]) == ["Mail 1", "Mail 2"]
    errors = {Path(piece.where).name: piece.error for piece in pieces if piece.error}
    assert errors.keys() == {"pipe.eml", "gone.eml", "large.eml"}
    assert "not a regular file" in errors["pipe.eml"]
    assert subjects(read(Path("a/b/one.eml"))) == ["Mail 1"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_may_have_its_columns_in_any_order_and_case(delimiter: str) -> None:
    rows = [["\ufeffDate", " Message_ID ", "other"], ["2026-11-16", '"<a,b;c@example.org>"', "x"], [], ["", "<m2>"]]
    first, second = read(write("\r\n".join(delimiter.join(row) for row in rows).encode(), "ids.csv"))
    assert first == Piece("row 2", row={"date": "2026-11-16", "message_id": "<a,b;c@example.org>", "other": "x"})
    assert second.row == {"date": "", "message_id": "<m2>"}


def test_a_damaged_row_stops_no_other() -> None:
    long = b'"' + b"x" * 300_000 + b'"'
    pieces = read(write(b"message_id\n\xff\xfe\n" + long + b"\na\x00b\none,too many\n<m9>\n", "ids.csv"))
    assert [piece.row["message_id"] for piece in pieces if piece.row][-1] == "<m9>"
    assert [piece.error for piece in pieces if piece.error][-1] == "more fields than the first line"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "needs email_id and date"),
        ({"subject": "Hello"}, "needs email_id and date"),
        ({"subject": "Hello", "sender": "a@b"}, "needs email_id and date"),
        ({"email_id": "fe4fc385494173f61585825e95d25317"}, "with the date"),
        ({"email_id": "no digest", "date": "2026-11-16"}, "32 hexadecimal digits"),
        ({"message_id": "<m1>", "date": "yesterday"}, "date must be a time"),
        ({"message_id": " <> "}, "needs email_id and date"),
    ],
)
def test_a_row_by_which_nothing_can_be_recognised_is_refused(row: dict[str, str], why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        row_item(row, "mime", None)


def test_all_columns_of_a_row_together_are_all_its_names() -> None:
    row = {"email_id": "a" * 32, "subject": "Hi", "sender": "a@example.org", "date": "2026-11-16", "message_id": "<m1>"}
    labels = [name.label for name in row_item(row, "mime", None).own_names]
    assert labels[:2] == [f"email_id:2026-11-16:{'a' * 32}", "post::m1"]
    assert len(labels) == len(set(labels)) == 4
