"""The text that a reader sees of a body, and its links. The caller knows whether it is plain text or HTML."""

from __future__ import annotations

import codecs
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from itertools import chain, islice

from deduplication.text import WINDOWS_1252, nfc, without_c1

MOST_LINKS = 1000
MAX_LINK_CHARS = 8 * 1024

_LINK = re.compile(r"https?://[^\s<>\"'\u00a0]+", re.IGNORECASE)
_ON_THE_WEB = re.compile(r"(?:https?://|data:)\S", re.IGNORECASE)
_SHOWN = ("href", "action", "src", "srcset", "background", "alt", "style")
_LEADS = {"a": "href", "area": "href", "base": "href", "form": "action"}
# A reader sees a gap where one of these opens or closes; other tags may occur inside a word. Ordered by first letter,
# the most frequent first, because each tag of an email is looked up in this list.
_BLOCK = (
    r"(?:p(?:re)?|t(?:able|body|d|foot|h|head|r)|d(?:d|iv|l|t)|b(?:lockquote|ody|r)|h(?:[1-6]|eader|r|tml)"
    r"|a(?:ddress|rticle|side)|f(?:ieldset|igure|ooter|orm)|o(?:l|ption)|center|img|li|main|nav|section|ul)\b"
)
# The tokens of HTML other than text, as its standard splits them. A token without an end extends to the end of the body
# and no quantifier gives back what it matched, so each character is read a fixed number of times.
_SPACE = r"\t\n\f\r "
_NAME = rf"[a-z][^{_SPACE}/>]*+"
_KEY = rf"[^{_SPACE}/>][^{_SPACE}/>=]*+"
_VALUE = rf"""=[{_SPACE}]*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^{_SPACE}"'>][^{_SPACE}>]*+)?+"""
_ATTRIBUTES = rf"(?:[{_SPACE}/]++|{_KEY}(?:[{_SPACE}]*+{_VALUE})?+)*+"
_TAG_OR_COMMENT = (
    rf"/?+{_NAME}{_ATTRIBUTES}(?:>|\Z)"
    r"|!--(?:-?>|[^-]*+(?:(?!--!?>)-[^-]*+)*+(?:--!?>|\Z))|(?:[!?]|/(?![a-z]|\Z))[^>]*+(?:>|\Z)"
)
_HIDDEN = "|".join(
    rf"{name}(?=[{_SPACE}/>]){_ATTRIBUTES}(?<!/)>[^<]*+(?:(?!</{name}[{_SPACE}/>])<[^<]*+)*+"
    for name in ("script", "style", "title")
)
_MARKUP = re.compile(rf"(?:(<)(?=/?+{_BLOCK})|<)(?:{_HIDDEN}|{_TAG_OR_COMMENT})", re.IGNORECASE | re.ASCII)
_START_TAG = re.compile(rf"<(?:{_HIDDEN}|({_NAME})({_ATTRIBUTES})>|{_TAG_OR_COMMENT})", re.IGNORECASE | re.ASCII)
_ATTRIBUTE = re.compile(rf"({_KEY})(?:[{_SPACE}]*+({_VALUE}))?+", re.ASCII)
_REFERENCE = re.compile(r"&(?:#[0-9]+;?|#x[0-9a-f]+;?|([0-9a-z]++(?:;|(?!=))))", re.IGNORECASE | re.ASCII)
_LONG_NUMBER = re.compile(r"&#(?=[0-9])0*+([0-9]{0,8}+)[0-9]*+")
_SPACES = bytes(ord(" ") if letter.isspace() else code for code, letter in enumerate(WINDOWS_1252))
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
_LOOKED_AT_CHARS = 100_000  # HTML has a tag before that
MOST_LOOKED_AT = 100_000  # of links, which may all be the same one
_MAX_READ_TAGS = 500_000  # no real email has more: such a body is read as plain text, in a tenth of the time


def looks_like_html(body: str) -> bool:
    """For a body of unknown type: whether it is a document, or has HTML elements that are closed or need no end tag.

    A style or script that is never closed, or in the middle of a text, is mentioned rather than used: read as HTML, it
    would hide text. So would List<String> and <ada@example.org>, which are not elements of HTML.
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
    """All of it, white space collapsed, NFC: what looks like a tag in plain text is part of the text."""
    try:
        letters = text.encode("latin-1").translate(_SPACES)
    except UnicodeEncodeError:
        return nfc(" ".join(without_c1(text).split()))
    # All these letters are in their normal form. Splitting into words takes twice as long as looking for two spaces.
    letters = b" ".join(letters.split()) if b"   " in letters else letters.replace(b"  ", b" ").strip(b" ")
    return letters.decode() if letters.isascii() else codecs.charmap_decode(letters, "strict", WINDOWS_1252)[0]


def _unescaped(text: str) -> str:
    """With entities decoded. int() raises at a number of 4301 digits, so numbers are cut to nine: invalid as well."""
    return html.unescape(_LONG_NUMBER.sub(r"&#0\1", text) if "&#" in text else text)


def _unescaped_value(value: str) -> str:
    """As _unescaped, by the rule for attributes: in a URL, &copy=1 and &notes hold no © and no ¬."""
    if "&" not in value:
        return value
    return _REFERENCE.sub(lambda found: html5.get(found[1], found[0]) if found[1] else _unescaped(found[0]), value)


def plain_links(text: str) -> tuple[str, ...]:
    """The web links written in a text, each once, in order, up to MOST_LINKS."""
    return _first_links(_written_links(text))


def _written_links(text: str) -> Iterator[str]:
    """Searches for "://", which takes a tenth of the time of a search by the regex."""
    end, colon = 0, text.find("://")
    while colon >= 0:
        link = _LINK.match(text, max(end, colon - len("https"))) or _LINK.match(text, max(end, colon - len("http")))
        if link:
            yield _trimmed(link[0])
        end = link.end() if link else colon + 1
        colon = text.find("://", end)


def _trimmed(link: str) -> str:
    """A link in running text without the punctuation that ends the sentence."""
    surplus = {")": link.count(")") - link.count("("), "]": link.count("]") - link.count("[")}
    end = len(link)
    while end and (link[end - 1] in ".,;:!?'…»”’" or surplus.get(link[end - 1], 0) > 0):
        end -= 1
        if link[end] in surplus:
            surplus[link[end]] -= 1
    return link[:end]


def _first_links(found: Iterable[str]) -> tuple[str, ...]:
    """Reads no more of ``found`` than it needs."""
    links = (link for link in found if len(link) <= MAX_LINK_CHARS and _LINK.match(link))
    seen: dict[str, None] = {}
    for link in islice(links, MOST_LOOKED_AT):
        seen[link] = None
        if len(seen) == MOST_LINKS:
            break
    return tuple(seen)


class Html:
    """What is read of a body of HTML, in linear time and memory. ``text`` is as plain_text, without tags, comments,
    scripts, styles and titles, entities decoded. ``links`` are the targets of its links, then those written in it.
    ``targets`` are everything that it leads to or shows beside its text, in order: emails that differ in it are
    different. Images of the email itself (cid:, or relative) are left out: they are files, and providers rewrite them.
    It ``is_empty`` if it shows neither text nor images, and leads nowhere.

    It is split into tags and text, as a browser does first. No tree is built: 25 KB of unclosed <b> and <p> would make
    five million elements. So nothing is repaired: an unclosed link counts once, not once for each block that it
    reaches into, a <td> needs no table, and tags in a <textarea> are tags.
    """

    def __init__(self, body: str) -> None:
        has_too_many_tags = body.count("<") > _MAX_READ_TAGS
        if has_too_many_tags:
            self.text = plain_text(body)
        else:
            pieces = _MARKUP.split(body)
            pieces[1::2] = [" " if gap else "" for gap in pieces[1::2]]  # of a tag there is "<" for a gap, else None
            pieces[::2] = [_unescaped(piece) if "&" in piece else piece for piece in pieces[::2]]
            self.text = plain_text("".join(pieces).replace("\0", ""))
        found = () if has_too_many_tags or not _may_lead(body) else tuple(_leading_attributes(body))
        self.is_empty = not (self.text or found)
        linked = (value for tag, name, value in found if tag == "a" and name == "href")
        self.links = _first_links(chain(_first_links(linked), _written_links(self.text)))
        self.targets = tuple(
            f"{name}={_digest_of_data(value)}" for _, name, value in found if name != "src" or _ON_THE_WEB.match(value)
        )


def _may_lead(written: str) -> bool:
    """Strings are searched one by one, which takes a tenth of the time of a regex that ignores case."""
    low = written.lower()
    return "href" in low or "url(" in low or "background" in low or "action" in low or "&" in low or "<im" in low


def _leading_attributes(body: str) -> Iterator[tuple[str, str, str]]:
    """Of tags with a target (_LEADS), a background or a url() in their style, and of images: the tag, and the name and
    value of each attribute that says what is led to or shown."""
    for match in _START_TAG.finditer(body):
        tag, written = (match[1] or "").lower(), match[2] or ""
        tag = "img" if tag == "image" else tag
        if tag == "img" or _may_lead(written):
            given = _read_attributes(written)
            if tag == "img" or _LEADS.get(tag) in given or "background" in given or "url(" in given.get("style", ""):
                yield from ((tag, name, given[name]) for name in _SHOWN if given.get(name))


def _read_attributes(written: str) -> dict[str, str]:
    """Those of _SHOWN, the first of each name: without quotes and outer spaces, decoded, lines ending in LF."""
    given: dict[str, str] = {}
    for attribute in _ATTRIBUTE.finditer(written.replace("\r\n", "\n").replace("\0", "\ufffd")):
        if (name := attribute[1].lower()) in _SHOWN and name not in given:
            value = (attribute[2] or "")[1:].strip(" \t\n\f\r")
            given[name] = _unescaped_value(value[1:-1] if value[:1] in ("'", '"') else value).strip()
    return given


def _digest_of_data(target: str) -> str:
    """A digest in place of a data: URL, which may be of any size."""
    if target[:5].lower() != "data:":
        return target
    return f"data:sha256,{hashlib.sha256(''.join(target.split()).encode()).hexdigest()}"
