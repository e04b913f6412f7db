"""The text of mailonce.toml: every problem is reported with its line, and env: and file: references are replaced."""

import os
from pathlib import Path

import pytest

from orchestrator.config.file import Document, read_document
from orchestrator.config.settings import SettingsError

VARIABLES = {"WORD": "s3cr3t", "EMPTY": "", "NESTED": "env:WORD", "_x1": "y"}
PATH = Path("mailonce.toml")


def document_of(text: str | bytes) -> Document:
    PATH.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_document(PATH, VARIABLES)


# Each line that sets a key or a table says which, after ##. Keys and numbers of entries are separated by slashes.
LAYOUT = '''\
# a comment with [a.table] and key = 1
top = 1 ## top
"quoted key" = 2 ## quoted key
dotted . "in between".end = 3 ## dotted/in between/end
long = """ ## long
[routes]
inside = 1 \\""" still
""""
literal = \'\'\' ## literal
inside = 2 \'\' \'\'\'
list = [ # [comment] ## list/2/deep/0/1
  "]", 1979-05-27 07:32:00,

  { name = "}", deep = [[1,
    2], []] },
]
empty = [] ## empty
[plain] ## plain ## plain/missing
a = 1 ## plain/a
  [ plain . sub ] ## plain/sub
b = 'x # no comment' ## plain/sub/b
[[routes]] ## routes ## routes/0
name = "one" ## routes/0/name
[[routes]] ## routes/1 ## routes/1/missing/deeper
name = "two" ## routes/1/name
match = [{ field = "subject" }, {}] ## routes/1/match/1
[routes.more] ## routes/1/more
c = 1 ## routes/1/more/c
[[routes.parts]] ## routes/1/parts/0
d = 1 ## routes/1/parts/0/d
[[routes.parts]] ## routes/1/parts/1
d = 2 ## routes/1/parts/1/d
[[routes]] ## routes/2
[[routes.parts]] ## routes/2/parts/0
d = 3 ## routes/2/parts/0/d
'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_problem_has_the_line_of_the_statement_that_sets_the_key_or_of_the_table_that_lacks_it(newline: str) -> None:
    document = document_of("\ufeff" + LAYOUT.replace("\n", newline))
    count = 0
    for number, line in enumerate(LAYOUT.splitlines(), 1):
        for path in line.split(" ## ")[1:]:
            loc = tuple(int(part) if part.isdigit() else part for part in path.split("/"))
            assert f"mailonce.toml, line {number}: " in str(document.error([(loc, "is wrong")])), path
            count += 1
    assert count > 25
    for name in ("inside", "a"):
        assert str(document.error([((name,), "is wrong")])) == f"mailonce.toml: {name} is wrong"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 1\nb = \n", "Invalid value (at line 2, column 5)"),
        ("a = 1\na = 2\n", "Cannot overwrite a value (at line 2, column 6)"),
        ("a = '''\n\n", "at end of document"),
        (b"a = 1\n# caf\xe9", "can't decode byte 0xe9"),
        (f"a = {'9' * 5000}", "digits"),
        (f"a = {'[' * 5000}", "recursion"),
        (f"a{'.a' * 5000} = 1", "recursion"),
    ],
)
def test_a_file_that_is_not_toml_is_reported(text: str | bytes, problem: str) -> None:
    with pytest.raises(SettingsError, match=r"^mailonce.toml must be TOML in UTF-8: [^\n]*$") as raised:
        document_of(text)
    assert problem in str(raised.value)


@pytest.mark.parametrize(("path", "problem"), [("none.toml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_reported(path: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"{path}: {problem}"):
        read_document(Path(path), {})


def test_references_are_replaced_in_every_text_value(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "near").write_bytes(b"\xef\xbb\xbfnext to the toml\r\n")
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
    assert document.values == {
        "a": "s3cr3t",
        "b": ["x", ["y"], {"c": "next to the toml"}],
        "d": "line one\n line two ",
        "e": "line one\n line two ",
        "f": "env:WORD",
        "g": "ENV:WORD env:WORD",
        "env:WORD": 1,
    }
    assert "s3cr3t" not in repr(document)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("env:NOWHERE", 'the environment variable "NOWHERE", which is not set or empty'),
        ("env:EMPTY", 'the environment variable "EMPTY", which'),
        ("env: WORD", 'the environment variable " WORD", which'),
        ("file:none", 'the file "none", which does not exist, is empty, or is not UTF-8 text'),
        ("file:", 'the file "", which'),
        ("file:pipe", 'the file "pipe", which'),
        ("file:empty", 'the file "empty", which'),
        ("file:latin", 'the file "latin", which'),
        (f"file:{'x' * 5000}", "which"),
        ("file:a\\u0000b", 'the file "a\\u0000b", which '),
        ("file:a\\nb", 'the file "a\\nb", which'),
    ],
)
def test_a_reference_that_leads_nowhere_is_reported_with_its_place(value: str, problem: str) -> None:
    Path("empty").write_text("\n")
    Path("latin").write_bytes(b"s3cr3t\xe9")
    os.mkfifo("pipe")
    with pytest.raises(SettingsError, match=r"^mailonce.toml, line 2: b.c.#2 refers to [^\n]*$") as raised:
        document_of(f'a = 1\nb.c = [\n1, "{value}"]')
    assert problem in str(raised.value)
    assert "s3cr3t" not in str(raised.value)
