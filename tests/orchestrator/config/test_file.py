"""The text of mailonce.toml: every key is found on its line, and env: and file: values are filled in unseen."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config.file import LARGEST_FILE_VALUE_BYTES, Complaint, Document, Loc, read_document
from orchestrator.config.settings import SettingsError

VARIABLES = {"WORD": "s3cr3t", "EMPTY": "", "NESTED": "env:WORD", "_x1": "y"}


def document_of(text: str) -> Document:
    path = Path("mailonce.toml")
    path.write_bytes(text.encode())
    return read_document(path, VARIABLES)


def complaint_of(text: str) -> str:
    with pytest.raises(SettingsError) as raised:
        document_of(text)
    return str(raised.value)


LAYOUT = '''\
# a comment with [a.table] and key = 1
top = 1
"quoted key" = 2
dotted . "in between".end = 3
long = """
[routes]
inside = 1 \\""" still
""""
literal = \'\'\'
inside = 2 \'\' \'\'\'
list = [ # [comment]
  "]", 1979-05-27 07:32:00,

  { name = "}", deep = [[1,
    2], []] },
]
empty = []
[plain]
a = 1
[ plain . sub ]
b = 'x # no comment'
[[routes]]
name = "one"
[[routes]]
name = "two"
match = [{ field = "subject" }, {}]
[routes.more]
c = 1
[[routes.parts]]
d = 1
[[routes.parts]]
d = 2
[[routes]]
[[routes.parts]]
d = 3
'''


@pytest.mark.parametrize(
    ("loc", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("dotted",), 4),
        (("dotted", "in between", "end"), 4),
        (("long",), 5),
        (("literal",), 9),
        (("list",), 11),
        (("list", 0), 12),
        (("list", 1), 12),
        (("list", 2, "name"), 14),
        (("list", 2, "deep", 0, 0), 14),
        (("list", 2, "deep", 0, 1), 15),
        (("list", 2, "deep", 1), 15),
        (("empty",), 17),
        (("plain",), 18),
        (("plain", "a"), 19),
        (("plain", "sub"), 20),
        (("plain", "sub", "b"), 21),
        (("routes",), 22),
        (("routes", 0), 22),
        (("routes", 0, "name"), 23),
        (("routes", 1), 24),
        (("routes", 1, "match", 1), 26),
        (("routes", 1, "more", "c"), 28),
        (("routes", 1, "parts", 0, "d"), 30),
        (("routes", 1, "parts", 1, "d"), 32),
        (("routes", 2), 33),
        (("routes", 2, "parts", 0, "d"), 35),
        # What is not there is where its table starts.
        (("plain", "missing"), 18),
        (("routes", 1, "missing", "deeper"), 24),
        (("inside",), None),
        (("a",), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key_is_found_on_its_line(newline: str, loc: Loc, line: int | None) -> None:
    assert document_of(LAYOUT.replace("\n", newline)).line_of(loc) == line


def test_a_byte_order_mark_does_not_matter() -> None:
    document = document_of("\ufeffa = 1")
    assert (document.values, document.line_of(("a",))) == ({"a": 1}, 1)


SCALARS = (
    '"{}"',
    "'{}'",
    '"[{{}}] # \\" \' , {}"',
    '"""\n[x]\n{} = 1 \\""" "" ]"""',
    "'''\n]}} #\n{} '''''",
    '""',
    "1979-05-27 07:32:00",
    "-1.5e3",
    "true",
)
LEAVES = st.sampled_from(SCALARS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
# A list is written as an array, a tuple as the values of an inline table.
TABLES = st.lists(st.tuples(st.sampled_from(["[{}]", "[[{}]]", "[ {}.{} ]"]), st.lists(VALUES, max_size=3)), max_size=4)


class Writer:
    """Writes TOML in which every key occurs once, so that a search finds its line."""

    def __init__(self, choices: st.DataObject) -> None:
        self._choices = choices
        self._count = 0

    def key(self) -> str:
        self._count += 1
        written = self._choices.draw(st.sampled_from(["k{:04}", '"k{:04}"', "'k{:04} .#='", "d . k{:04}"]))
        return str(written).format(self._count)

    def pair(self, value: Any) -> str:
        return f"{self.key().replace('d .', f'd{self._count} .')} = {self.value(value)}"

    def value(self, value: Any) -> str:
        if isinstance(value, tuple):
            return "{ " + ", ".join(map(self.pair, value)) + " }"
        if isinstance(value, list):
            gap = self._choices.draw(st.sampled_from([" ", "\n", " # ] } ,\n\t"]))
            return "[" + gap + "".join(f"{self.value(each)}{gap},{gap}" for each in value) + "]"
        return str(value).format("text")

    def document(self, top: list[Any], tables: list[tuple[str, list[Any]]]) -> str:
        lines = [self.pair(value) for value in top]
        for header, values in tables:
            self._count += 1
            lines.append(header.format(f"t{self._count}", f"k{self._count:04}"))
            lines.extend(self.pair(value) for value in values)
        return "\n".join(lines)


def locs_in(value: Any, loc: Loc = ()) -> Iterator[Loc]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, each in entries:
        yield (*loc, part)
        yield from locs_in(each, (*loc, part))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, max_size=4), TABLES, st.data())
def test_no_layout_confuses_the_lines(top: list[Any], tables: list[tuple[str, list[Any]]], choices: Any) -> None:
    text = Writer(choices).document(top, tables)
    document = document_of(text)
    locs = list(locs_in(tomllib.loads(text)))
    assert set(locs) == set(document.lines)
    for loc in locs:
        if isinstance(loc[-1], str) and loc[-1].startswith("k"):
            assert text.splitlines()[document.lines[loc] - 1].count(loc[-1]) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = 1\nb = ", "mailonce.toml, line 2: Invalid value, where the file ends"),
        ("a = 1\nb = \n", "mailonce.toml, line 2: Invalid value, at column 5"),
        ("a = 1\na = 2\n", "mailonce.toml, line 2: Cannot overwrite a value, at column 6"),
        ("x\n", "mailonce.toml, line 1: Expected '=' after a key in a key/value pair, at column 2"),
        ("a = '''\n\n", "mailonce.toml, line 2: Expected \"'''\", where the file ends"),
        ("a = 1\r b = 2", "mailonce.toml, line 1: "),
        (f"a = {'9' * 5000}", "mailonce.toml: "),
        (f"a = {'[' * 5000}", "mailonce.toml: it is nested too deeply"),
        (f"a{'.a' * 5000} = 1", "mailonce.toml: it is nested too deeply"),
    ],
)
def test_what_is_not_toml_is_reported_with_its_line(text: str, complaint: str) -> None:
    line = complaint_of(text)
    assert line.startswith(complaint)
    assert "\n" not in line


def test_what_is_not_utf8_is_reported_with_its_line() -> None:
    Path("mailonce.toml").write_bytes(b"a = 1\n# caf\xe9")
    with pytest.raises(SettingsError, match="^mailonce.toml, line 2: it is not written in UTF-8$"):
        read_document(Path("mailonce.toml"), {})


@pytest.mark.parametrize(("path", "reason"), [("none.toml", "No such file or directory"), (".", "Is a directory")])
def test_what_cannot_be_read_is_reported(path: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"{path}: {reason}"):
        read_document(Path(path), {})


def test_variables_and_files_are_filled_in_wherever_text_may_stand(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "near").write_bytes(b"\xef\xbb\xbfbeside the toml\r\n")
    (tmp_path / "far").write_text("line one\n line two \n\n")
    path = tmp_path / "conf" / "mailonce.toml"
    path.write_text(
        f"""
        a = "env:WORD"
        b = ["x", ["env:_x1"], {{ c = "file:near" }}]
        d = "file:{tmp_path}/far"
        e = "file:../far"
        f = "env:NESTED"
        g = "ENV:WORD env:WORD"
        "env:WORD" = 1
        """
    )
    document = read_document(path, VARIABLES)
    assert document.unresolved == ()
    assert document.values == {
        "a": "s3cr3t",
        "b": ["x", ["y"], {"c": "beside the toml"}],
        "d": "line one\n line two ",
        "e": "line one\n line two ",
        "f": "env:WORD",
        "g": "ENV:WORD env:WORD",
        "env:WORD": 1,
    }
    assert document.written["a"] == "env:WORD"
    assert [document.is_filled_in(loc) for loc in (("a",), ("b",), ("b", 0), ("g",))] == [True, True, False, False]
    assert "s3cr3t" not in repr(document)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("env:NOWHERE", "takes what the variable NOWHERE says, which is not set"),
        ("env:EMPTY", "takes what the variable EMPTY says, which is empty"),
        ("env:", 'takes the name of a variable after env:, not ""'),
        ("env: WORD", 'takes the name of a variable after env:, not " WORD"'),
        ("env:A=B", 'takes the name of a variable after env:, not "A=B"'),
        ("file:none", 'takes what the file "none" says, which cannot be read: No such file or directory'),
        ("file:", 'takes what the file "" says, which cannot be read: it is not a file'),
        ("file:pipe", 'takes what the file "pipe" says, which cannot be read: it is not a file'),
        ("file:empty", 'takes what the file "empty" says, which is empty'),
        ("file:latin", 'takes what the file "latin" says, which is not text in UTF-8'),
        ("file:long", 'takes what the file "long" says, which cannot be read: it is longer than 65536 bytes'),
        (f"file:{'x' * 5000}", "cannot be read: File name too long"),
        ("file:a\\u0000b", "takes what the file"),
        ("file:a\\nb", 'takes what the file "a\\nb" says'),
    ],
)
def test_a_value_that_cannot_be_filled_in_names_the_place_and_what_is_missing(value: str, complaint: str) -> None:
    Path("empty").write_text("\n")
    Path("latin").write_bytes(b"s3cr3t\xe9")
    Path("long").write_text("s3cr3t" * LARGEST_FILE_VALUE_BYTES)
    os.mkfifo("pipe")
    document = document_of(f'a = 1\nb.c = [\n1, "{value}"]')
    line = str(document.error(document.unresolved))
    assert line.startswith("mailonce.toml, line 3: b.c.#2 takes ")
    assert complaint in line
    assert "\n" not in line
    assert "s3cr3t" not in line
    assert document.is_unresolved(("b", "c", 1))
    assert not document.is_unresolved(("b", "c"))


@pytest.mark.parametrize(
    ("loc", "name"),
    [
        (("a", "b"), "a.b"),
        (("a b", 'q"\n'), '"a b"."q\\"\\n"'),
        (("routes", 0, "match", 0), "routes.one.match.#1"),
        (("routes", 1, "name"), 'routes."env:WORD".name'),
        (("routes", 2), "routes.#3"),
        (("routes", 9), "routes.#10"),
        (("text", 0), "text"),
    ],
)
def test_a_place_is_named_as_the_operator_would(loc: Loc, name: str) -> None:
    document = document_of(
        'text = "x"\n[[routes]]\nname = "one"\nmatch = [1]\n[[routes]]\nname = "env:WORD"\n[[routes]]\nname = 3'
    )
    assert document.name_of(loc) == name


def test_complaints_come_in_the_order_of_the_file() -> None:
    document = document_of("a = 1\nb = 2\n")
    complaints = [Complaint(("b",), "takes x"), Complaint(("c",), "is needed"), Complaint(("a",), "takes y")]
    assert str(document.error(complaints)).splitlines() == [
        "mailonce.toml: c is needed",
        "mailonce.toml, line 1: a takes y",
        "mailonce.toml, line 2: b takes x",
    ]
