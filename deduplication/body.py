"""The visible text of a body, and its links. The caller knows whether the body is plain text or HTML."""

import codecs
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from itertools import chain, islice

from deduplication.text import WINDOWS_1252, nfc, replace_c1

MAX_LINKS = 1000
MAX_LINK_CHARS = 8 * 1024

_LINK = re.compile(r"[hH][tT][tT][pP][sS]?://[^\s<>\"'\u00a0]+")  # ten times as fast as with IGNORECASE
_WEB_OR_DATA = re.compile(r"(?:https?://|data:)\S", re.IGNORECASE)
_READ_ATTRIBUTES = ("href", "action", "src", "srcset", "background", "alt", "style")
_TARGET_ATTRIBUTE = {"a": "href", "area": "href", "base": "href", "form": "action"}
# These elements separate words; other tags may occur inside a word. The alternatives are grouped by first letter, the
# most frequent first, because every tag of an email is matched against them.
_BLOCK = (
    r"(?:p(?:re)?|t(?:able|body|d|foot|h|head|r)|d(?:d|iv|l|t)|b(?:lockquote|ody|r)|h(?:[1-6]|eader|r|tml)"
    r"|a(?:ddress|rticle|side)|f(?:ieldset|igure|ooter|orm)|o(?:l|ption)|center|img|li|main|nav|section|ul)\b"
)
# The tokens of HTML other than text, as its standard defines them. A token without an end extends to the end of the
# body, and no quantifier backtracks, so each character is read a fixed number of times.
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
_ELEMENTS = frozenset(  # of HTML, including obsolete ones
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
_OFFICE_ELEMENT = re.compile(r"(?:[ovwm]|st\d+):")
_SNIFFED_CHARS = 100_000  # HTML has a tag within these
MAX_READ_LINKS = 100_000  # repeated links included
_MAX_TAGS = 500_000  # no real email has more; such a body is read as plain text, which takes a tenth of the time


def looks_like_html(body: str) -> bool:
    """Whether a body of unknown type is an HTML document, or has HTML elements that are closed or need no end tag.

    A body that only mentions tags is text, because HTML would hide a part of it: an element that HTML does not have, as
    in List<String> and <ada@example.org>, or a style or script that is never closed or follows text.
    """
    if _DOCUMENT.match(body):
        return True
    tags = {(bool(tag[1]), tag[2].lower(), bool(tag[3])) for tag in _TAG.finditer(body[:_SNIFFED_CHARS])}
    if any(name not in _ELEMENTS and not _OFFICE_ELEMENT.match(name) for _, name, _ in tags):
        return False
    opened = {name for is_end, name, is_complete in tags if is_complete and not is_end}
    closed = {name for is_end, name, is_complete in tags if is_complete and is_end}
    hiding = opened & {"head", "script", "style", "title"}
    if hiding and (hiding - closed or not body.lstrip().startswith("<")):
        return False
    return bool(opened & (closed | {"br", "hr", "img"}))


def plain_text(text: str) -> str:
    """The text with white space collapsed, in NFC. Tags in plain text are part of the text."""
    try:
        letters = text.encode("latin-1").translate(_SPACES)
    except UnicodeEncodeError:
        return nfc(" ".join(replace_c1(text).split()))
    # All letters of Latin-1 are in NFC. Words take ten times as much memory as double spaces that are replaced.
    letters = b" ".join(letters.split()) if b"   " in letters else letters.replace(b"  ", b" ").strip(b" ")
    return letters.decode() if letters.isascii() else codecs.charmap_decode(letters, "strict", WINDOWS_1252)[0]


def _unescape(text: str) -> str:
    """Decodes entities. Numbers are cut to nine digits, which are invalid too: int() raises at 4,301 digits."""
    return html.unescape(_LONG_NUMBER.sub(r"&#0\1", text) if "&#" in text else text)


def _unescape_attribute(value: str) -> str:
    """Decodes entities by the rules for attributes: &copy=1 and &notes in a URL do not become © and ¬."""
    if "&" not in value:
        return value
    return _REFERENCE.sub(lambda match: html5.get(match[1], match[0]) if match[1] else _unescape(match[0]), value)


def plain_links(text: str, earlier: Iterable[str] = ()) -> tuple[str, ...]:
    """The ``earlier`` links and the web links in a text, without repetitions, in order, up to MAX_LINKS."""
    return _first_links(chain(earlier, map(_trim, _LINK.findall(text)) if "://" in text else ()))


def _trim(link: str) -> str:
    """Removes the punctuation that ends the sentence, not the link."""
    surplus = {")": link.count(")") - link.count("("), "]": link.count("]") - link.count("[")}
    end = len(link)
    while end and (link[end - 1] in ".,;:!?'…»”’" or surplus.get(link[end - 1], 0) > 0):
        end -= 1
        if link[end] in surplus:
            surplus[link[end]] -= 1
    return link[:end]


def _first_links(candidates: Iterable[str]) -> tuple[str, ...]:
    """The first MAX_LINKS web links, without repetitions; later candidates are not read."""
    links = (link for link in candidates if len(link) <= MAX_LINK_CHARS and _LINK.match(link))
    first: dict[str, None] = {}
    for link in islice(links, MAX_READ_LINKS):
        first[link] = None
        if len(first) == MAX_LINKS:
            break
    return tuple(first)


class Html:
    """An HTML body, read in linear time and memory.

    ``text`` is the visible text as plain_text returns it, without tags, comments, scripts, styles and titles, and with
    entities decoded. ``links`` are the targets of its links, then the links in its text. ``targets`` are the attributes
    of all links, forms, images and backgrounds, in order: emails whose targets differ are different. They exclude the
    URLs of the email's own images (cid: or relative), which are files, because providers rewrite these URLs. An HTML
    body that ``is_empty`` has neither text nor links nor images.

    The body is split into tags and text, as browsers do first. No tree is built, because 25 KB of unclosed <b> and <p>
    would make five million elements. So nothing is repaired: an unclosed link counts once, not once for each block that
    it extends into, a <td> needs no table, and tags in a <textarea> are tags.
    """

    def __init__(self, body: str) -> None:
        has_too_many_tags = body.count("<") > _MAX_TAGS
        if has_too_many_tags:
            self.text = plain_text(body)
        else:
            pieces = _MARKUP.split(body)
            pieces[1::2] = [" " if gap else "" for gap in pieces[1::2]]  # "<" for tags that separate words, else None
            pieces[::2] = [_unescape(piece) if "&" in piece else piece for piece in pieces[::2]]
            self.text = plain_text("".join(pieces).replace("\0", ""))
        targets = () if has_too_many_tags or not _may_have_target(body) else tuple(_target_attributes(body))
        self.is_empty = not (self.text or targets)
        linked = (value for tag, name, value in targets if tag == "a" and name == "href")
        self.links = plain_links(self.text, _first_links(linked))
        self.targets = tuple(
            f"{name}={_digest_data_url(value)}"
            for _, name, value in targets
            if name != "src" or _WEB_OR_DATA.match(value)
        )


def _may_have_target(markup: str) -> bool:
    """Searches for one string after the other, because a regex that ignores case takes ten times as long."""
    low = markup.lower()
    return "href" in low or "url(" in low or "background" in low or "action" in low or "&" in low or "<im" in low


def _target_attributes(body: str) -> Iterator[tuple[str, str, str]]:
    """The tag, name and value of each attribute in _READ_ATTRIBUTES, of images, links and forms (_TARGET_ATTRIBUTE) and
    of tags with a background or a url() in their style."""
    for match in _START_TAG.finditer(body):
        tag, markup = (match[1] or "").lower(), match[2] or ""
        tag = "img" if tag == "image" else tag
        if tag == "img" or _may_have_target(markup):
            values = _parse_attributes(markup)
            has_target = _TARGET_ATTRIBUTE.get(tag) in values or "background" in values
            if tag == "img" or has_target or "url(" in values.get("style", ""):
                yield from ((tag, name, values[name]) for name in _READ_ATTRIBUTES if values.get(name))


def _parse_attributes(markup: str) -> dict[str, str]:
    """The first value of each of _READ_ATTRIBUTES: without quotes and outer spaces, decoded, with LF as line ends."""
    values: dict[str, str] = {}
    for attribute in _ATTRIBUTE.finditer(markup.replace("\r\n", "\n").replace("\0", "\ufffd")):
        if (name := attribute[1].lower()) in _READ_ATTRIBUTES and name not in values:
            value = (attribute[2] or "")[1:].strip(" \t\n\f\r")
            values[name] = _unescape_attribute(value[1:-1] if value[:1] in ("'", '"') else value).strip()
    return values


def _digest_data_url(target: str) -> str:
    """Replaces a data: URL, which may have any size, by its digest."""
    if target[:5].lower() != "data:":
        return target
    return f"data:sha256,{hashlib.sha256(''.join(target.split()).encode()).hexdigest()}"
