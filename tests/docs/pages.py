"""The pages, taken apart: blocks, code within lines, links, headings, commands of the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.surroundings import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FOR_CONTRIBUTORS = tuple(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))


@dataclass(frozen=True)
class Block:
    """``line`` is where it begins; ``above`` the block before it under the same heading."""

    page: str
    line: int
    language: str
    text: str
    above: Block | None = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse(page.read_text()))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    found: list[Block] = []
    above = None
    for token in tokens(page):
        if token.type == "heading_open":
            above = None
        if token.type in ("fence", "code_block"):
            text = token.content.strip("\n")
            language = token.info.strip() or guess(text)
            line = token.map[0] + 1 if token.map else 0
            above = Block(name_of(page), line, language, text, above)
            found.append(above)
    return tuple(found)


def all_blocks(*languages: str) -> list[Block]:
    found = [block for page in PAGES for block in blocks(page)]
    return [block for block in found if not languages or block.language in languages]


def guess(text: str) -> str:
    """Of a block that was only indented."""
    if text.startswith("{"):
        return "json"
    return "sh" if text.startswith("curl ") else "text"


def inline(page: Path) -> Iterator[Token]:
    """The parts of paragraphs, headings and tables."""
    for token in tokens(page):
        yield from token.children or ()


def code_in_lines(page: Path) -> list[str]:
    return [re.sub(r"\s+", " ", token.content).strip() for token in inline(page) if token.type == "code_inline"]


def prose(page: Path) -> str:
    """Text and the code within it; no blocks."""
    return "\n".join(token.content for token in inline(page) if token.type in ("text", "code_inline"))


def links(page: Path) -> list[str]:
    found = [token.attrs.get("href") or token.attrs.get("src") for token in inline(page)]
    return [str(each) for each in found if each]


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub and mkdocs both make them of headings."""
    slugs: list[str] = []
    for heading, content in zip(tokens(page), tokens(page)[1:], strict=False):
        if heading.type == "heading_open":
            text = "".join(part.content for part in content.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return frozenset(slugs)


@cache
def code() -> str:
    """Of all that prints or logs, with any white space as one blank."""
    folders = ("deduplication", "orchestrator", "routes", "tests")
    return " ".join(" ".join(path.read_text().split()) for folder in folders for path in (ROOT / folder).rglob("*.py"))


_ASSIGNED = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """``settings`` precede it; ``text`` is the command as written, without them; ``into_shell``: ``| sh`` follows."""

    text: str
    words: tuple[str, ...]
    settings: dict[str, str]
    into_shell: bool = False

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""


def commands(block: str) -> list[Command]:
    """One for each line, where a line goes on over backslashes and open quotes. Comments are left out."""
    found, lines = [], ""
    for line in block.splitlines():
        lines = f"{lines}\n{line}" if lines else line
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(lines.replace("\\\n", " "), comments=True)
        except ValueError:  # a quote is still open
            continue
        if words:
            found.append(_command(lines, words))
        lines = ""
    assert not lines, f"it does not end: {lines}"
    return found


def _command(text: str, words: list[str]) -> Command:
    settings = {}
    while words and words[0] == "export":
        words = words[1:]
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        settings[assigned[1]] = assigned[2]
        words = words[1:]
    if words[:1] == ["sudo"]:
        words = words[3:] if words[1] == "-u" else words[1:]
    into_shell = words[-2:] == ["|", "sh"]
    return Command(text.strip(), tuple(words[:-2] if into_shell else words), settings, into_shell)
