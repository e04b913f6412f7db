"""The media gate: which links of an email deliver files, and which links lead to the same file."""

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

# Hosts, parameters and words of other programs and services. The names of emails depend on them: never remove any.
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
    """The same URL for all links to one file. Never raises; a text that is not a web address is not changed.

    The host is in lower case and ASCII. Credentials, default port, trailing slashes, query and hash are removed, except
    for the query parameters in ``identity_parameters``, which are sorted ("#" there keeps the hash).
    """
    url = well_formed(url)
    parts = _split(url)
    if parts is None:
        return url
    host, path = ascii_host(parts.hostname or ""), parts.path.rstrip(f"/{whitespace}")
    query, fragment = _query_and_hash(parts, host, path, identity_parameters)
    site = f"[{host}]" if ":" in host else host
    if parts.port not in (None, _DEFAULT_PORTS[parts.scheme]):
        site = f"{site}:{parts.port}"
    return _PERCENT.sub(lambda code: code[0].upper(), f"{parts.scheme}://{site}{path}{query}{fragment}")


def media_name(
    url: str, identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS, whose: str = ""
) -> Name:
    """The name of a file. ``whose`` limits it to the emails of one scope, such as ``@example.org``. It follows a space,
    which links do not have, so a limited name never equals one that counts for everyone."""
    key = bounded_key(canonical_url(url, identity_parameters))
    return Name(Kind.MEDIA, "", f"{key} {whose}" if whose else key, WEEK_MS)


def ascii_host(host: str) -> str:
    """The name of a host as in DNS; empty if it is invalid.

    Python's idna codec is not used, because it maps straße.de to strasse.de, a different host.
    """
    labels = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").rstrip(".").split(".")
    name = ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)
    return name if _HOST.fullmatch(name) else ""


def is_under(host: str, *domains: str) -> bool:
    """Whether an ASCII host is one of the domains or a subdomain; ``*.example.org`` means ``example.org``."""
    return f".{host}".endswith(tuple(map(_host_ending, domains)))


@lru_cache(maxsize=1000)
def _host_ending(domain: str) -> str:
    """Cached, because every link is compared with the same few domains of the lists and the settings."""
    return f".{ascii_host(domain.removeprefix('*.'))}"


def _split(url: str) -> SplitResult | None:
    """None if it is not a web address."""
    site = _SITE.match(url)
    if site and site.end() > MAX_SITE_CHARS:  # urlsplit is slow for a site of a megabyte
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts if parts.scheme in _DEFAULT_PORTS and ascii_host(parts.hostname or "") else None


def _query_and_hash(parts: SplitResult, host: str, path: str, table: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The query and the hash that identify the file, each with its sign, or empty. Longer sites take precedence."""
    for site in sorted(table, key=len, reverse=True):
        domain, _, folder = site.partition("/")
        if not is_under(host, domain) or not f"{path}/".startswith(f"/{folder}".rstrip("/") + "/"):
            continue
        parameters = {name.lower() for name in table[site]}
        pairs = ((name.lower(), value.strip()) for name, _, value in (p.partition("=") for p in parts.query.split("&")))
        query = "&".join(sorted({f"{name}={value}" for name, value in pairs if name in parameters and value}))
        fragment = parts.fragment.strip() if FRAGMENT in table[site] else ""
        if query or fragment:
            return f"?{query}" if query else "", f"#{fragment}" if fragment else ""
    return "", ""


# Links that deliver no file. In doubt, a link does not count: if it should have, a repeated file is delivered, but a
# link in every email of a sender (a logo, a login page) would make all later emails look like repetitions.

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
_UNSUBSCRIBE = re.compile(
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
    """The links that deliver files, as received and in order; of links to the same file, the first.

    LISTED accepts links to ``hosts`` and their subdomains, ALL links to any host. Trackers, unsubscribe links, home
    pages, login and legal pages, images of signatures, and assets of the file services' own pages never count.
    """
    deliveries: dict[str, str] = {}
    for link in () if mode is MediaMode.OFF else links:
        canonical = canonical_url(link, identity_parameters)
        parts = _split(canonical)
        if parts and _is_delivery(link, parts, mode, hosts):
            deliveries.setdefault(canonical, link)
    return tuple(deliveries.values())


def _is_delivery(link: str, parts: SplitResult, mode: MediaMode, hosts: Collection[str]) -> bool:
    """``parts`` are the parts of the link's canonical URL."""
    host, path = parts.hostname or "", parts.path
    is_listed = is_under(host, *hosts)
    if not (is_listed or mode is MediaMode.ALL):
        return False
    is_tracker = (
        (_TRACKER_SUBDOMAIN.match(host) and host not in _NO_TRACKERS)
        or is_under(host, *_TRACKER_DOMAINS)
        or _TRACKER_PATH.search(path)
        or _UNSUBSCRIBE.search(unquote(link))
    )
    is_signature_image = _IMAGE_FILE.search(unquote(path)) and _SIGNATURE_WORD.search(unquote(path))
    is_service = is_under(host, *DEFAULT_HOSTS)
    # The file services' own pages have such assets. The names of shared files, which people choose, may look alike.
    is_asset = is_service and (
        _SERVICE_SUBDOMAINS.match(host)
        or _ASSET_FOLDER.match(path)
        or (_ASSET_FILE.search(path) and not _SHARED_FILE.match(path))
        or (_SERVICE_HOME.fullmatch(path) and not parts.query)
    )
    return not (is_tracker or is_signature_image or is_asset or _is_page(parts, is_listed or is_service))


def _is_page(parts: SplitResult, is_listed: bool) -> bool:
    """Whether it is a home page without a query, or a page such as /help. /help/<more> may be a file on other hosts."""
    if _HOME.fullmatch(parts.path):
        return not (parts.query or parts.fragment)
    page = _PAGE.match(parts.path)
    return bool(page and (is_listed or page.end() == len(parts.path)))
