"""Whether the sender of an email is authentic: the results of SPF, DKIM and DMARC from a trusted source.

Senders can add any header, so an Authentication-Results header (RFC 8601) counts only if it names a host that the
operator trusts, and only the topmost of them: mail servers add headers on top, above those of the sender.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from deduplication.text import QUOTED, without_comments
from deduplication.values import frozen

Verdict = Literal["pass", "fail", "none"]
METHODS = ("spf", "dkim", "dmarc")
MAX_RESULTS_CHARS = 16 * 1024  # longer headers are ignored

_VERDICTS: dict[str, Verdict] = {
    **dict.fromkeys(("pass",), "pass"),
    **dict.fromkeys(("fail", "softfail", "hardfail", "policy"), "fail"),
    # There was nothing to pass or fail. Amazon writes "gray", Microsoft "bestguesspass".
    **dict.fromkeys(("none", "neutral", "gray", "bestguesspass"), "none"),
}
_RANKS: Sequence[Verdict | None] = ("none", "fail", "pass")
_QUOTED = re.compile(QUOTED, re.DOTALL)
_HOST = re.compile(r"\s*+(?:\([^()]*+\)\s*+)*+([^\s;()\"]+)")
_RESULT = re.compile(r"(spf|dkim|dmarc)(?:/\d+)?\s*=\s*([a-z]+)(?![\w-])")
_DOMAIN = re.compile(r"\b(smtp\.mailfrom|header\.(?:d|i|from))\s*=\s*(?:\S*@)?([^\s@;]+)")
_DOMAIN_OF = {"spf": ("smtp.mailfrom",), "dkim": ("header.d", "header.i"), "dmarc": ("header.from",)}


class Result(NamedTuple):
    """One check: its method, its result in any notation, and the domain that was checked, empty if unknown."""

    method: str
    result: str
    domain: str = ""

    @property
    def verdict(self) -> Verdict | None:
        return _VERDICTS.get(self.result.lower())


@frozen
class Authentication:
    """None means unknown, which is not a pass. ``from_aligned``: whether a domain that passed is the sender's.

    ``source`` is the provider, or the host that wrote the header.
    """

    spf: Verdict | None = None
    dkim: Verdict | None = None
    dmarc: Verdict | None = None
    from_aligned: bool | None = None
    source: str | None = None


UNKNOWN = Authentication()


def authenticate(
    own: Iterable[Result], provider: str, headers: Sequence[str], trusted: Collection[str], sender_domain: str
) -> Authentication:
    """``own`` are the provider's results. For the other methods, the ``headers`` count: the values of
    Authentication-Results in their order, if a host in ``trusted`` wrote them."""
    results = [result for result in own if result.verdict]
    sources = [provider] if results else []
    if trusted and headers:
        host, others = _trusted_results(headers, trusted)
        known = {result.method for result in results}
        if others := [result for result in others if result.verdict and result.method not in known]:
            results, sources = [*results, *others], [*sources, host]
    # A DMARC result is about the domain it names; the email may have another From header with another domain.
    results = [result for result in results if result.method != "dmarc" or result.domain in ("", sender_domain)]
    if not results:
        return UNKNOWN
    verdicts: dict[str, Verdict | None] = dict.fromkeys(METHODS)
    for result in sorted(results, key=lambda result: _RANKS.index(result.verdict)):  # the best of each method counts
        verdicts[result.method] = result.verdict
    aligned = _is_aligned(results, verdicts, sender_domain)
    return Authentication(**verdicts, from_aligned=aligned, source=", ".join(sources))


def _is_aligned(results: Sequence[Result], verdicts: dict[str, Verdict | None], sender: str) -> bool | None:
    """Whether the domain that passed is the sender's or a parent of it. None (unknown) for a subdomain: it may belong
    to someone else, such as a customer of github.io, and only the public suffix list could tell."""
    if verdicts["dmarc"] in ("pass", "fail"):
        return verdicts["dmarc"] == "pass"
    domains = [result.domain for result in results if result.verdict == "pass"]
    if any(domain and "." in domain and f".{sender}".endswith(f".{domain}") for domain in domains):
        return True
    are_both_known = verdicts["spf"] is not None and verdicts["dkim"] is not None
    may_be_aligned = any(not domain or f".{domain}".endswith(f".{sender}") for domain in domains)
    return False if sender and are_both_known and not may_be_aligned else None


def _trusted_results(headers: Sequence[str], trusted: Collection[str]) -> tuple[str, list[Result]]:
    """The host and the results of the topmost header that a trusted host wrote. If that header cannot be read, there
    are no results, because the headers below it may be forged."""
    for header in headers:
        host = _HOST.match(header)
        if host and host[1].lower() in trusted:
            results = []
            for statement in _statements(header):
                if match := _RESULT.match(statement):
                    domains = dict(reversed(_DOMAIN.findall(statement)))
                    domain = next((domains[key] for key in _DOMAIN_OF[match[1]] if key in domains), "")
                    results.append(Result(match[1], match[2], domain))
            return host[1].lower(), results
    return "", []


def _statements(header: str) -> list[str]:
    """The parts between semicolons, in lower case, without comments and quoted text, which senders can choose.

    Empty if a comment or quote is not closed.
    """
    text = _QUOTED.sub("''", without_comments(header[: MAX_RESULTS_CHARS + 1], "("))
    if len(header) > MAX_RESULTS_CHARS or any(sign in text for sign in "()\\"):
        return []
    return [statement.strip().lower() for statement in text.split(";")]
