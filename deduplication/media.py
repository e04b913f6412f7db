"""Media: which links of an email deliver files, and when two links are the same file."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from string import whitespace
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from deduplication.names import WEEK_MS, Kind, Name, bounded_key
from deduplication.text import well_formed

MAX_SITE_CHARS = 500  # of a URL, up to its path
FRAGMENT = "#"

# How other programs and services name things. Names of emails depend on it: none may be removed.
LISTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lists.toml").read_text(encoding="utf-8"))
IDENTITY_PARAMETERS: Mapping[str, Collection[str]] = LISTS["identity_parameters"]
DEFAULT_HOSTS: tuple[str, ...] = tuple(LISTS["file_hosts"])

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}")
_SITE = re.compile(r"(?:[^/?#]*//)?[^/?#]*")
_HOST = re.compile(r"[a-z0-9_.:-]+")


class MediaMode(StrEnum):
    OFF = "off"
    LISTED = "listed"
    ALL = "all"


def canonical_url(url: str, identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS) -> str:
    """One URL for all links to one file; never raises. A text that is not a web address is returned as it is.

    Without query, hash, credentials, default port and trailing slashes, the host in lower case and ASCII; of the query
    only the parameters of ``identity_parameters`` are kept, sorted ("#" in it keeps the hash).
    """
    given = well_formed(url)
    parts = _split(given)
    if parts is None:
        return given
    host, path = ascii_host(parts.hostname or ""), parts.path.rstrip(f"/{whitespace}")
    query, fragment = _identity(parts, host, path, identity_parameters)
    site = f"[{host}]" if ":" in host else host
    if parts.port not in (None, _DEFAULT_PORTS[parts.scheme]):
        site = f"{site}:{parts.port}"
    return _PERCENT.sub(lambda code: code[0].upper(), f"{parts.scheme}://{site}{path}{query}{fragment}")


def media_name(
    url: str, identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS, whose: str = ""
) -> Name:
    """``whose``: such as ``@example.org``, if it counts only among those emails. A space, which no link in a text has,
    keeps their names apart from those that count for everyone."""
    known = bounded_key(canonical_url(url, identity_parameters))
    return Name(Kind.MEDIA, "", f"{known} {whose}" if whose else known, WEEK_MS)


def ascii_host(host: str) -> str:
    """A host as in DNS; empty if it cannot be one.

    Not by Python's own codec, which maps straße.de to strasse.de, someone else's host.
    """
    readable = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").rstrip(".")
    if not readable.isascii():
        labels = readable.split(".")
        readable = ".".join(
            label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels
        )
    return readable if _HOST.fullmatch(readable) else ""


def is_under(host: str, *domains: str) -> bool:
    """Whether an ASCII host is one of these or a subdomain of one; ``*.example.org`` means ``example.org``."""
    return f".{host}".endswith(_endings(domains))


@lru_cache(maxsize=1000)
def _endings(domains: tuple[str, ...]) -> tuple[str, ...]:
    """Cached: these are always the same few, of the tables here and the settings, and used for each link."""
    return tuple(f".{ascii_host(domain.removeprefix('*.'))}" for domain in domains)


def split_url(url: str) -> SplitResult:
    """As urlsplit, which is slow for a site of a megabyte. Raises ValueError for an invalid URL."""
    site = _SITE.match(url)
    if site and site.end() > MAX_SITE_CHARS:
        raise ValueError(f"a site must have at most {MAX_SITE_CHARS} characters")
    return urlsplit(url)


def _split(url: str) -> SplitResult | None:
    try:
        parts = split_url(url)
        _ = parts.port  # raises for what is not a port
    except ValueError:
        return None
    return parts if parts.scheme in _DEFAULT_PORTS and ascii_host(parts.hostname or "") else None


def _identity(parts: SplitResult, host: str, path: str, table: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The query and the hash that are kept, each with its sign, or empty."""
    whole_host, whole_path = f".{host}", f"{path}/"
    places = [
        place
        for place, (domain, folder) in zip(table, map(_ending_and_folder, table), strict=True)
        if whole_host.endswith(domain) and whole_path.startswith(folder)
    ]
    for place in sorted(places, key=len, reverse=True):
        wanted = {name.lower() for name in table[place]}
        pairs = [
            (name.lower(), value.strip()) for name, _, value in (pair.partition("=") for pair in parts.query.split("&"))
        ]
        query = "&".join(sorted({f"{name}={value}" for name, value in pairs if name in wanted and value}))
        fragment = parts.fragment.strip() if FRAGMENT in table[place] else ""
        if query or fragment:
            return f"?{query}" if query else "", f"#{fragment}" if fragment else ""
    return "", ""


@lru_cache(maxsize=1000)
def _ending_and_folder(place: str) -> tuple[str, str]:
    """How the host and the path of a link look that an entry of the table is about; kept as _endings are."""
    domain, _, folder = place.partition("/")
    return _endings((domain,))[0], f"/{folder.strip('/')}/" if folder else ""


# Links that deliver no file. In doubt a link is left out: a missing one lets a repeated file through, but one that is
# in every email of a sender (a logo, a login page) would make all later emails look like repetitions.

_LOCALE = r"(?:/[a-z]{2}(?:[-_](?:[a-z]{2}|hans|hant))?)?"
_HOME = re.compile(rf"{_LOCALE}(?:/(?:index|default|home)(?:\.\w+)?)?", re.IGNORECASE)
_SERVICE_HOME = re.compile(
    r"/(?:drive|document|spreadsheets|presentation|forms)(?:/u/\d+)?"
    r"(?:/(?:computers|home|my-drive|quota|recent|shared-drives|shared-with-me|starred|trash))?"
    r"|/(?:sites|teams|personal)/[^/]+(?:/sitepages/.*)?|/_layouts/\d+/sharepoint\.aspx",
    re.IGNORECASE,
)
_PAGE = re.compile(
    rf"{_LOCALE}/(?:about(?:-us)?|accounts?|app|apps|blog|business|careers|contact(?:-us)?|cookies?(?:-policy)?|faq"
    r"|features|help|home|imprint|impressum|install|jobs|legal|log-?in|log-?out|mentions-legales|plans?|preferences"
    r"|pricing|privacy(?:-policy)?|profile|register|security|settings|sign-?in|sign-?up|support|terms(?:-[a-z-]+)?"
    r"|upgrade|welcome)(?:\.\w+)?(?=/|$)",
    re.IGNORECASE,
)
_ASSET_FOLDER = re.compile(
    rf"{_LOCALE}(?:/_layouts/\d+)?/(?:assets?|css|favicons?|fonts?|icons?|images?|img|js|logos?|static)(?:[/._-]|$)"
    r"|.*/siteassets/",
    re.IGNORECASE,
)
_IMAGE_FILE = re.compile(r"\.(?:png|jpe?g|gif|svg|webp|bmp|ico)$", re.IGNORECASE)
_ASSET_FILE = re.compile(rf"{_IMAGE_FILE.pattern}|\.(?:css|m?js|woff2?|ttf|otf|eot|map)$", re.IGNORECASE)
_SHARED_FILE = re.compile(r"/(?:s|sh|scl|t|l|u|:[a-z]:|sites|teams|personal)/", re.IGNORECASE)
_SERVICE_SUBDOMAINS = re.compile(r"(?:about|accounts?|assets?|auth|blog|cdn|cf|help|learn|static|status|support)\.")
_SIGNATURE_WORD = re.compile(
    r"(?<![a-z])(?:avatar|badge|banner|facebook|favicon|icons?|image\d{3}|instagram|linkedin|logos?|pixel|signatures?"
    r"|spacer|twitter|whatsapp|youtube)(?![a-z])",
    re.IGNORECASE,
)
_TRACKER_SUBDOMAIN = re.compile(r"(?:clicks?|trk|track|tracking|tracker|opens?|pixel|beacon)\d*\.")
_NO_TRACKERS = frozenset({"open.spotify.com", "open.substack.com"})
_TRACKER_DOMAINS: tuple[str, ...] = tuple(LISTS["tracker_domains"])
_TRACKER_PATH = re.compile(
    r"/(?:wf|ls|track|tracking|trk|email)/(?:open|click)(?:[/.]|$)|/(?:pixel|beacon|spacer|open|blank|1x1)\.\w+$",
    re.IGNORECASE,
)
_LEAVING = re.compile(
    r"unsubscri|(?<![a-z])unsub(?![a-z])|d[eé]sabo|d[eé]sinscri|(?<![a-z])opt-?_?out(?![a-z])|abmelden"
    r"|(?:email|manage|notification)[-_]preferences",
    re.IGNORECASE,
)


def delivery_links(
    links: Iterable[str],
    mode: MediaMode,
    hosts: Collection[str] = DEFAULT_HOSTS,
    identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS,
) -> tuple[str, ...]:
    """The links that deliver files, as they were written, each once by its canonical URL, in order.

    LISTED accepts those of ``hosts`` and their subdomains, ALL those of any host. Trackers, links to unsubscribe, home
    pages, login and legal pages, images of signatures and assets of the delivery services' own pages never count.
    """
    found: dict[str, str] = {}
    for link in () if mode is MediaMode.OFF else links:
        canonical = canonical_url(link, identity_parameters)
        parts = _split(canonical)
        if parts and _is_delivery(link, parts, mode, hosts):
            found.setdefault(canonical, link)
    return tuple(found.values())


def _is_delivery(link: str, parts: SplitResult, mode: MediaMode, hosts: Collection[str]) -> bool:
    """``parts`` are those of the link's canonical URL."""
    host, path = parts.hostname or "", parts.path
    is_listed = is_under(host, *hosts)
    if not (is_listed or mode is MediaMode.ALL):
        return False
    is_tracker = (
        (_TRACKER_SUBDOMAIN.match(host) and host not in _NO_TRACKERS)
        or is_under(host, *_TRACKER_DOMAINS)
        or _TRACKER_PATH.search(path)
        or _LEAVING.search(unquote(link))
    )
    is_signature_image = _IMAGE_FILE.search(unquote(path)) and _SIGNATURE_WORD.search(unquote(path))
    is_service = is_under(host, *DEFAULT_HOSTS)
    # How the delivery services dress their own pages; the names of shared files were chosen by people.
    is_asset = is_service and (
        _SERVICE_SUBDOMAINS.match(host)
        or _ASSET_FOLDER.match(path)
        or (_ASSET_FILE.search(path) and not _SHARED_FILE.match(path))
        or (_SERVICE_HOME.fullmatch(path) and not parts.query)
    )
    return not (is_tracker or is_signature_image or is_asset or _is_page(parts, is_listed or is_service))


def _is_page(parts: SplitResult, is_listed: bool) -> bool:
    """A home page, unless its query says which file; on hosts that are not listed, /help/<more> may be anything."""
    if _HOME.fullmatch(parts.path):
        return not (parts.query or parts.fragment)
    page = _PAGE.match(parts.path)
    return bool(page and (is_listed or page.end() == len(parts.path)))
