"""Media: which links of an email are deliveries, and when two links are the same file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from string import whitespace
from urllib.parse import SplitResult, unquote, urlsplit

from deduplication.email import well_formed
from deduplication.identity import bounded_key
from deduplication.limits import MAX_SITE_CHARS
from deduplication.names import WEEK_MS, Kind, Name

FRAGMENT = "#"
# Where the query says which file it is: a host with its subdomains, or host/path; the longest entry decides, and if it
# finds nothing in the link, the next. Access keys and tracking are not listed: the same file may come with others.
IDENTITY_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "drive.google.com": ("id", "srcid", "url"),
    "docs.google.com": ("id", "srcid", "docid", "key", "url"),
    "drive.usercontent.google.com": ("id",),
    "google.com/url": ("q", "url"),
    "dropbox.com": ("preview",),  # which file of a shared folder; the file or folder itself stands in the path
    "onedrive.live.com": ("resid", "id", "cid", "redeem", "photosdata"),
    "sharepoint.com": ("id", "sourcedoc", "docid", "uniqueid", "share", "sourceurl", "rootfolder"),
    "youtube.com": ("v", "list", "u", "video_ids"),
    "youtube.com/watch": ("v",),  # a video is the same in every playlist
    "facebook.com": ("v", "fbid", "story_fbid", "id", "u"),
    "vimeo.com": ("clip_id",),
    "vk.com": ("w", "z", "oid", "id"),
    "reddit.com/media": ("url",),
    "news.ycombinator.com": ("id",),
    "pcloud.com": ("code",),
    "pcloud.link": ("code",),
    "terabox.com": ("surl",),
    "pan.baidu.com": ("surl",),
    "box.com": ("shared_name", "file_id"),
    "mega.nz": (FRAGMENT,),
    "mega.co.nz": (FRAGMENT,),
    "cryptpad.fr": (FRAGMENT,),
    "icloud.com/sharedalbum": (FRAGMENT,),
    "safelinks.protection.outlook.com": ("url",),
    "urldefense.proofpoint.com": ("u",),
}

DEFAULT_HOSTS = (
    "dropbox.com",
    "dropboxusercontent.com",
    "fromsmash.com",
    "swisstransfer.com",
    "wetransfer.com",
    "we.tl",
    "drive.google.com",
    "drive.usercontent.google.com",
    "docs.google.com",
    "onedrive.live.com",
    "1drv.ms",
    "sharepoint.com",
)

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}")
_SITE = re.compile(r"(?:[^/?#]*//)?[^/?#]*")
_HOST = re.compile(r"[a-z0-9_.:-]+")


class MediaMode(StrEnum):
    OFF = "off"
    LISTED = "listed"
    ALL = "all"


def canonical_url(url: str, identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS) -> str:
    """Links to one file give one URL; never raises. What is not a web address stays as it is.

    No query, no hash, no credentials, no default port, no trailing slashes, the host in lower case and ASCII; of the
    query only the parameters of ``identity_parameters``, sorted ("#" in it keeps the hash).
    """
    given = well_formed(url)
    parts = _split(given)
    if parts is None:
        return given
    host, path = ascii_host(parts.hostname or ""), parts.path.rstrip(f"/{whitespace}")
    query, fragment = _identity(parts, host, path, identity_parameters)
    return _PERCENT.sub(lambda code: code[0].upper(), f"{parts.scheme}://{_site(parts, host)}{path}{query}{fragment}")


def media_name(url: str, identity_parameters: Mapping[str, Collection[str]] = IDENTITY_PARAMETERS) -> Name:
    return Name(Kind.MEDIA, "", bounded_key(canonical_url(url, identity_parameters)), WEEK_MS)


def ascii_host(host: str) -> str:
    """A host as DNS knows it; empty for what cannot be one.

    Not by Python's own codec, which takes straße.de for strasse.de, someone else's host.
    """
    readable = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").rstrip(".")
    if not readable.isascii():
        readable = ".".join(label if label.isascii() else f"xn--{_punycode(label)}" for label in readable.split("."))
    return readable if _HOST.fullmatch(readable) else ""


def is_under(host: str, *domains: str) -> bool:
    """Whether an ASCII host is one of these or a subdomain of one; ``*.example.org`` is taken as ``example.org``."""
    return f".{host}".endswith(_endings(domains))


@lru_cache(maxsize=1000)
def _endings(domains: tuple[str, ...]) -> tuple[str, ...]:
    """Kept: these are always the same few, of the tables here and the settings, and asked about for each link."""
    return tuple(f".{ascii_host(domain.removeprefix('*.'))}" for domain in domains)


def _punycode(label: str) -> str:
    return label.encode("punycode").decode("ascii")


def split_url(url: str) -> SplitResult:
    """As urlsplit, which takes long over a site of a megabyte. Raises ValueError for what cannot be an address."""
    site = _SITE.match(url)
    if site and site.end() > MAX_SITE_CHARS:
        raise ValueError(f"a site takes at most {MAX_SITE_CHARS} characters")
    return urlsplit(url)


def _split(url: str) -> SplitResult | None:
    try:
        parts = split_url(url)
        _ = parts.port  # raises for what is not a port
    except ValueError:
        return None
    return parts if parts.scheme in _DEFAULT_PORTS and ascii_host(parts.hostname or "") else None


def _site(parts: SplitResult, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{shown}:{parts.port}"


def _identity(parts: SplitResult, host: str, path: str, table: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The query and the hash that are kept, each with its sign, or empty."""
    whole_host, whole_path = f".{host}", f"{path}/"
    places = [
        place
        for place, (domain, folder) in zip(table, map(_ending_and_folder, table), strict=True)
        if whole_host.endswith(domain) and whole_path.startswith(folder)
    ]
    for place in sorted(places, key=len, reverse=True):
        query = "&".join(_kept(parts.query, table[place]))
        fragment = parts.fragment.strip() if FRAGMENT in table[place] else ""
        if query or fragment:
            return f"?{query}" if query else "", f"#{fragment}" if fragment else ""
    return "", ""


@lru_cache(maxsize=1000)
def _ending_and_folder(place: str) -> tuple[str, str]:
    """How the host and the path of a link look that an entry of the table is about; kept as _endings are."""
    domain, _, folder = place.partition("/")
    return _endings((domain,))[0], f"/{folder.strip('/')}/" if folder else ""


def _kept(query: str, names: Collection[str]) -> list[str]:
    wanted = {name.lower() for name in names}
    pairs = [(name.lower(), value.strip()) for name, _, value in (pair.partition("=") for pair in query.split("&"))]
    return sorted({f"{name}={value}" for name, value in pairs if name in wanted and value})


# What is no delivery. In doubt a link is left out: one missed lets a repeated file through, but one that stands in
# every email of a sender (a logo, a login page) would make all his later emails look like repetitions.

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
_ASSET_FILE = re.compile(r"\.(?:png|jpe?g|gif|svg|webp|bmp|ico|css|m?js|woff2?|ttf|otf|eot|map)$", re.IGNORECASE)
_SHARED_FILE = re.compile(r"/(?:s|sh|scl|t|l|u|:[a-z]:|sites|teams|personal)/", re.IGNORECASE)
_SERVICE_SUBDOMAINS = re.compile(r"(?:about|accounts?|assets?|auth|blog|cdn|cf|help|learn|static|status|support)\.")
_SIGNATURE_WORD = re.compile(
    r"(?<![a-z])(?:avatar|badge|banner|facebook|favicon|icons?|image\d{3}|instagram|linkedin|logos?|pixel|signatures?"
    r"|spacer|twitter|whatsapp|youtube)(?![a-z])",
    re.IGNORECASE,
)
_TRACKER_SUBDOMAIN = re.compile(r"(?:clicks?|trk|track|tracking|tracker|opens?|pixel|beacon)\d*\.")
_NO_TRACKERS = frozenset({"open.spotify.com", "open.substack.com"})
_TRACKER_DOMAINS = (
    "awstrack.me",
    "createsend.com",
    "customeriomail.com",
    "doubleclick.net",
    "emltrk.com",
    "exacttarget.com",
    "google-analytics.com",
    "hubspotemail.net",
    "hubspotlinks.com",
    "klclick.com",
    "list-manage.com",
    "mailchi.mp",
    "mailchimp.com",
    "mailjet.com",
    "mailtrack.io",
    "mandrillapp.com",
    "mjt.lu",
    "rs6.net",
    "sendgrid.net",
    "sparkpostmail.com",
)
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
    """The links that hand over files, as they were written, each once by its canonical URL, in order.

    LISTED takes those of ``hosts`` and their subdomains, ALL those of any host. Trackers, ways to unsubscribe, home
    pages, login and legal pages, images of signatures and what these services decorate their pages with never count.
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
    host = parts.hostname or ""
    is_listed = is_under(host, *hosts)
    if not (is_listed or mode is MediaMode.ALL) or _is_tracker(link, host, parts.path):
        return False
    is_service = is_under(host, *DEFAULT_HOSTS)
    return not (
        _is_page(parts, is_listed or is_service)
        or _is_signature_image(unquote(parts.path))
        or (is_service and _is_decoration(host, parts))
    )


def _is_tracker(link: str, host: str, path: str) -> bool:
    return bool(
        (_TRACKER_SUBDOMAIN.match(host) and host not in _NO_TRACKERS)
        or is_under(host, *_TRACKER_DOMAINS)
        or _TRACKER_PATH.search(path)
        or _LEAVING.search(unquote(link))
    )


def _is_page(parts: SplitResult, is_listed: bool) -> bool:
    """A home page, unless its query says which file; elsewhere than on listed hosts /help/<more> may be anything."""
    if _HOME.fullmatch(parts.path):
        return not (parts.query or parts.fragment)
    page = _PAGE.match(parts.path)
    return bool(page and (is_listed or page.end() == len(parts.path)))


def _is_signature_image(path: str) -> bool:
    return bool(_IMAGE_FILE.search(path) and _SIGNATURE_WORD.search(path))


def _is_decoration(host: str, parts: SplitResult) -> bool:
    """How the delivery services dress their own pages; names of shared files were chosen by people and do not count."""
    path = parts.path
    return bool(
        _SERVICE_SUBDOMAINS.match(host)
        or _ASSET_FOLDER.match(path)
        or (_ASSET_FILE.search(path) and not _SHARED_FILE.match(path))
        or (_SERVICE_HOME.fullmatch(path) and not parts.query)
    )
