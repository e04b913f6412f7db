"""What a reader sees of a body, text or HTML, and the links in it."""

from __future__ import annotations

import html
import re
import unicodedata

from selectolax.lexbor import LexborHTMLParser

_LINK = re.compile(r"https?://[^\s<>\"'\u00a0]+", re.IGNORECASE)
_HREF = re.compile(r"\bhref\s*=[\s\"']*(https?://[^\s<>\"']+)", re.IGNORECASE)
_TAG = re.compile(r"<(?:!doctype|/?[a-z][a-z0-9]*)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_HIDDEN = re.compile(r"<(/?)(script|style|head)\b[^<>]*>", re.IGNORECASE)
# Where one of these opens or closes, a reader sees a gap; other tags may stand inside a word.
_GAP = re.compile(
    r"(?=</?(?:address|article|aside|blockquote|br|center|dd|div|dl|dt|fieldset|figure|footer|form|h[1-6]|header|hr|img"
    r"|li|main|nav|ol|option|p|pre|section|table|tbody|td|tfoot|th|thead|tr|ul)\b)",
    re.IGNORECASE,
)
_MAX_PARSED_TAGS = 10_000  # parsing tags nested in tags takes quadratic time: minutes for a megabyte of them


def plain_text(body: str) -> str:
    """What a reader sees: tags, scripts and styles gone, entities decoded, white space collapsed, NFC."""
    seen = _html_text(body) if _TAG.search(body) else body
    return unicodedata.normalize("NFC", " ".join(seen.split()))


def _html_text(body: str) -> str:
    if body.count("<") > _MAX_PARSED_TAGS:
        return _unparsed_text(body)
    tree = LexborHTMLParser(_GAP.sub(" ", body))
    tree.strip_tags(["script", "style", "head"])
    return tree.body.text() if tree.body else ""


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
    return html.unescape(re.sub(r"<[!/a-zA-Z][^<>]*>", "", _GAP.sub(" ", " ".join(pieces))))


def links_of(body: str) -> tuple[str, ...]:
    """The web links of a text or HTML body, each once, in order."""
    if not _TAG.search(body):
        return tuple(dict.fromkeys(_written_links(body)))
    return tuple(dict.fromkeys([*_hrefs(body), *_written_links(plain_text(body))]))


def _hrefs(body: str) -> list[str]:
    if body.count("<") > _MAX_PARSED_TAGS:
        return [html.unescape(target) for target in _HREF.findall(body)]
    targets = [node.attributes.get("href") or "" for node in LexborHTMLParser(body).css("a[href]")]
    return [target.strip() for target in targets if _LINK.match(target.strip())]


def _written_links(text: str) -> list[str]:
    return [link for link in map(_trimmed, _LINK.findall(text)) if _LINK.match(link)]


def _trimmed(link: str) -> str:
    """A link in running text without the punctuation that ends the sentence."""
    surplus = {")": link.count(")") - link.count("("), "]": link.count("]") - link.count("[")}
    end = len(link)
    while end and (link[end - 1] in ".,;:!?'…»”’" or surplus.get(link[end - 1], 0) > 0):
        end -= 1
        if link[end] in surplus:
            surplus[link[end]] -= 1
    return link[:end]
