"""What a reader sees of a body, and the links and images in it. Whether it is text or HTML, its caller knows."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from selectolax.lexbor import LexborHTMLParser

from deduplication.kept_property import kept_property
from deduplication.limits import MAX_LINK_CHARS, MOST_LINKS
from deduplication.unicode_text import nfc

_LINK = re.compile(r"https?://[^\s<>\"'\u00a0]+", re.IGNORECASE)
_HREF = re.compile(r"\bhref\s*=[\s\"']*(https?://[^\s<>\"']+)", re.IGNORECASE)
_SOURCE = re.compile(r"<img\b[^<>]*?\bsrc\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)'|([^\s\"'<>]+))", re.IGNORECASE)
_IMAGE = re.compile(r"(https?://|cid:|data:)\S", re.IGNORECASE)
_ON_THE_WEB = re.compile(r"(?:https?://|data:)\S", re.IGNORECASE)
_SHOWN = ("href", "action", "src", "srcset", "background", "alt", "style")
_LEADING = "a[href], area[href], base[href], form[action], img, [background], [style*='url(']"
# A short note as people and scripts write it: paragraphs, line ends and bold words, with no attributes and no entities.
# Nothing in it is left for a parser to decide.
_WORDS = r"[^<>&\0\ufeff]"
_NOTED = "|".join(
    [rf"{_WORDS}++", "<br ?/?>", *(rf"<{tag}>{_WORDS}*+</{tag}>" for tag in ("b", "i", "u", "em", "strong"))]
)
_NOTE = re.compile(rf"(?:{_NOTED}|<p>(?:{_NOTED})*+</p>|<div>(?:{_NOTED})*+</div>)*+")
_NOTED_GAPS, _NOTED_TAGS = re.compile(r"</?(?:p|div|br ?/?)>"), re.compile(r"<[^>]*+>")
_ATTRIBUTE = re.compile(
    r"\b(href|action|src|srcset|background|alt)\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)'|([^\s\"'<>]+))", re.IGNORECASE
)
_HIDDEN = re.compile(r"<(/?)(script|style|head|title)\b[^<>]*>", re.IGNORECASE)
# Where one of these opens or closes, a reader sees a gap; other tags may stand inside a word. By their first letters,
# the most frequent ones first: each tag of an email is looked up in this list.
_BLOCK = (
    r"(?:p(?:re)?|t(?:able|body|d|foot|h|head|r)|d(?:d|iv|l|t)|b(?:lockquote|ody|r)|h(?:[1-6]|eader|r|tml)"
    r"|a(?:ddress|rticle|side)|f(?:ieldset|igure|ooter|orm)|o(?:l|ption)|center|img|li|main|nav|section|ul)\b"
)
# Nearly all are in lower case: case is disregarded, which takes twice as long, only where there is some.
_BLOCK_START = re.compile(rf"<(?=/?+(?:{_BLOCK}|(?=[a-z]*+[A-Z\u0130\u0131\u017f])(?i:{_BLOCK})))")
_BLOCK_TAGS = re.compile(rf"(?:</?{_BLOCK}[^<>]*+>)++", re.IGNORECASE)
_TAGS = re.compile(r"(?:<[!/a-zA-Z][^<>]*+>)++")
_SPACES = bytes(ord(" ") if chr(code).isspace() else code for code in range(256))
_DOCUMENT = re.compile(r"\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-z][^\s<>/]*)([^<>]*>)?", re.IGNORECASE)
_ELEMENTS = frozenset(  # of HTML, those of old included
    re.findall(
        r"\w+",
        """
        a abbr acronym address area article aside audio b base basefont bdi bdo bgsound big blink blockquote body br
        button canvas caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl dt em
        embed fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr
        html i iframe image img input ins kbd label legend li link main map mark marquee menu meta meter nav nobr
        noscript object ol optgroup option output p param picture pre progress q rp rt ruby s samp script section
        select small source span strike strong style sub summary sup svg table tbody td template textarea tfoot th
        thead time title tr track tt u ul var video wbr
        """,
    )
)
_OUTLOOKS_OWN = re.compile(r"(?:[ovwm]|st\d+):")
_LOOKED_AT_CHARS = 100_000  # what is HTML shows it sooner
MOST_LOOKED_AT = 100_000  # the same link over and over again
_MAX_PARSED_TAGS = 10_000
_MAX_READ_TAGS = 500_000  # nobody wrote that: it is taken as it stands, in a tenth of the time
# A tag of hundreds of attributes: what is quoted, or stands between spaces and slashes, over and over again. Such a
# tag is long, which is quickly seen of each that is not.
_MANY_ATTRIBUTES = re.compile(r"""<(?=[^>]{400})(?:[^<>"'\s/]*+(?>"[^"<>]*+"|'[^'<>]*+'|[\s/"']++)){400}""")


def looks_like_html(body: str) -> bool:
    """For a body of which nobody says what it is: a document, or elements of HTML's own that are closed or stand alone.

    A style or script that is never closed, or in the midst of a text, is written about and not used: read as HTML, it
    would hide what was meant to be read. So would List<String> and <ada@example.org>, which HTML knows no element for.
    """
    if _DOCUMENT.match(body):
        return True
    tags = {(bool(tag[1]), tag[2].lower(), bool(tag[3])) for tag in _TAG.finditer(body[:_LOOKED_AT_CHARS])}
    if any(name not in _ELEMENTS and not _OUTLOOKS_OWN.match(name) for _, name, _ in tags):
        return False
    whole = [(is_end, name) for is_end, name, is_whole in tags if is_whole]
    opened, closed = ({name for is_end, name in whole if is_end is which} for which in (False, True))
    hiding = opened & {"head", "script", "style", "title"}
    if hiding and (hiding - closed or not body.lstrip().startswith("<")):
        return False
    return bool(opened & (closed | {"br", "hr", "img"}))


def plain_text(text: str) -> str:
    """Of plain text all of it, white space collapsed, NFC: what looks like a tag there was written to be read."""
    try:
        letters = text.encode("latin-1").translate(_SPACES)
    except UnicodeEncodeError:
        return nfc(" ".join(text.split()))
    # Of these letters each is in its normal form. To make words of them takes twice as long as to look for two spaces.
    letters = b" ".join(letters.split()) if b"   " in letters else letters.replace(b"  ", b" ").strip(b" ")
    return letters.decode("latin-1")


def _unparsed_text(body: str) -> str:
    """In linear time whatever the tags: nobody's email may keep the service busy for minutes."""
    shown, *hidden = _HIDDEN.split(body)
    pieces, inside = [shown], ""
    for closing, tag, text in zip(hidden[::3], hidden[1::3], hidden[2::3], strict=True):
        if closing and tag.lower() == inside:
            inside = ""
        elif not closing and not inside:
            inside = tag.lower()
        if not inside:
            pieces.append(text)
    return html.unescape(_TAGS.sub("", _BLOCK_TAGS.sub(" ", " ".join(pieces))))


def plain_links(text: str) -> tuple[str, ...]:
    """The web links written in a text, each once, in order, up to MOST_LINKS."""
    return _first_links(_written_links(text))


def _written_links(text: str) -> Iterator[str]:
    """Looked for by the one part that is always written alike, which takes a tenth of the time."""
    end, colon = 0, text.find("://")
    while colon >= 0:
        link = _LINK.match(text, max(end, colon - len("https"))) or _LINK.match(text, max(end, colon - len("http")))
        if link:
            yield _trimmed(link[0])
        end = link.end() if link else colon + 1
        colon = text.find("://", end)


def _first_links(found: Iterable[str]) -> tuple[str, ...]:
    """No more is read than is needed for them."""
    return _first(link for link in found if len(link) <= MAX_LINK_CHARS and _LINK.match(link))


def _first(found: Iterable[str]) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    for each in islice(found, MOST_LOOKED_AT):
        seen[each] = None
        if len(seen) == MOST_LINKS:
            break
    return tuple(seen)


@dataclass(frozen=True)
class Html:
    """A body of HTML. Each part of it is read when it is first asked for, and once.

    Parsing tags nested in tags, or the attributes of one tag, takes quadratic time: minutes for a megabyte of them.
    Where there are so many, it is ``_is_costly``, and read without a parser, by rules that come close.
    """

    body: str

    @kept_property
    def text(self) -> str:
        """As plain_text, with tags, scripts and styles gone and entities decoded."""
        if self._is_beyond_reading:
            return plain_text(self.body)
        if self._is_costly:
            return plain_text(_unparsed_text(self.body))
        if _NOTE.fullmatch(self.body):
            return plain_text(_NOTED_TAGS.sub("", _NOTED_GAPS.sub(" ", self.body)))
        # A tree of its own: in one with gaps, tags that are closed in the wrong order would lead to other places.
        tree = LexborHTMLParser(_BLOCK_START.sub(" <", self.body))
        tree.strip_tags(["script", "style", "head", "title"])
        return plain_text(tree.body.text() if tree.body else "")

    @kept_property
    def links(self) -> tuple[str, ...]:
        """Those that it leads to, then those that are written in its text."""
        if self._is_beyond_reading:
            return plain_links(self.body)
        if self._is_costly:
            targets = (html.unescape(match[1]) for match in _HREF.finditer(self.body))
        else:
            targets = (value for tag, name, value in self._attributes if tag == "a" and name == "href")
        linked = _first_links(targets)
        if len(linked) == MOST_LINKS:
            return linked
        return _first_links(chain(linked, _written_links(self.text)))

    @kept_property
    def images(self) -> tuple[str, ...]:
        """The images that it shows, each once, in order: on the web, in the email (cid:), or within the HTML itself.

        The last are named by their digest alone, as they may be of any size.
        """
        if self._is_beyond_reading:
            return ()
        if self._is_costly:
            found = (html.unescape("".join(filter(None, match.groups()))) for match in _SOURCE.finditer(self.body))
            sources = (source.strip() for source in found)
        else:
            sources = (value for tag, name, value in self._attributes if tag == "img" and name == "src")
        return _first(_image(source) for source in sources if _IMAGE.match(source))

    @kept_property
    def targets(self) -> tuple[str, ...]:
        """All that it leads to or shows beside its text, in order: two emails that differ in it say different things.

        But an image of the email itself (cid:, or relative): it is one of its files, and doors point to it as they
        like.
        """
        if self._is_beyond_reading:
            return ()
        if self._is_costly:
            found = (match.groups() for match in _ATTRIBUTE.finditer(self.body))
            given = ((name.lower(), html.unescape("".join(filter(None, values))).strip()) for name, *values in found)
        else:
            given = ((name, value) for _, name, value in self._attributes)
        return tuple(
            f"{name}={_image(value)}" for name, value in given if value and (name != "src" or _ON_THE_WEB.match(value))
        )

    @kept_property
    def _attributes(self) -> tuple[tuple[str, str, str], ...]:
        """Of each tag that leads somewhere or shows something: its name, and the attributes that say what.

        Where none of their names is written anywhere there are none, and nothing need be parsed a second time.
        """
        if not _may_lead(self.body) and not _may_lead(self.body.lower()):
            return ()
        nodes = ((node.tag or "", node.attributes) for node in LexborHTMLParser(self.body).css(_LEADING))
        return tuple(
            (tag, name, value)
            for tag, attributes in nodes
            for name in _SHOWN
            if (value := (attributes.get(name) or "").strip())
        )

    @kept_property
    def _tags(self) -> int:
        return self.body.count("<")

    @kept_property
    def _is_costly(self) -> bool:
        return self._tags > _MAX_PARSED_TAGS or _MANY_ATTRIBUTES.search(self.body) is not None

    @property
    def _is_beyond_reading(self) -> bool:
        return self._tags > _MAX_READ_TAGS


def _may_lead(body: str) -> bool:
    """<image> is read as <img>."""
    return "href" in body or "style" in body or "<im" in body or "background" in body or "action" in body


def _image(source: str) -> str:
    if source[:5].lower() != "data:":
        return source
    return f"data:sha256,{hashlib.sha256(''.join(source.split()).encode()).hexdigest()}"


def _trimmed(link: str) -> str:
    """A link in running text without the punctuation that ends the sentence."""
    surplus = {")": link.count(")") - link.count("("), "]": link.count("]") - link.count("[")}
    end = len(link)
    while end and (link[end - 1] in ".,;:!?'…»”’" or surplus.get(link[end - 1], 0) > 0):
        end -= 1
        if link[end] in surplus:
            surplus[link[end]] -= 1
    return link[:end]
