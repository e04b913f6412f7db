"""Whether the sender of an email is authentic: SPF, DKIM and DMARC, as somebody trusted has checked them.

An email can carry any header, so Authentication-Results (RFC 8601) counts only if it names a host that the operator
trusts, and of several the topmost: headers are added on top, and the sender's own ones are below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from deduplication.values import frozen

Verdict = Literal["pass", "fail", "none"]
METHODS = ("spf", "dkim", "dmarc")
MAX_RESULTS_CHARS = 16 * 1024  # of a header; a longer one is not read

_VERDICTS: dict[str, Verdict] = {
    **dict.fromkeys(("pass",), "pass"),
    **dict.fromkeys(("fail", "softfail", "hardfail", "policy"), "fail"),
    # Checked, and nothing found that could pass or fail. "gray" is Amazon's, "bestguesspass" Microsoft's.
    **dict.fromkeys(("none", "neutral", "gray", "bestguesspass"), "none"),
}
_RANKS: Sequence[Verdict | None] = ("none", "fail", "pass")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+"|\\.|[^"\\();]++|.', re.DOTALL)
_IN_COMMENT = re.compile(r"\\.|[^\\()]++|.", re.DOTALL)  # where quotes mean nothing
_HOST = re.compile(r"\s*+(?:\([^()]*+\)\s*+)*+([^\s;()\"]+)")
_RESULT = re.compile(r"(spf|dkim|dmarc)(?:/\d+)?\s*=\s*([a-z]+)(?![\w-])")
_DOMAIN = re.compile(r"\b(smtp\.mailfrom|header\.(?:d|i|from))\s*=\s*(?:\S*@)?([^\s@;]+)")
_DOMAIN_OF = {"spf": ("smtp.mailfrom",), "dkim": ("header.d", "header.i"), "dmarc": ("header.from",)}


class Result(NamedTuple):
    """One check: its method, what came out, in any notation, and the domain that was checked, if that is known."""

    method: str
    result: str
    domain: str = ""

    @property
    def verdict(self) -> Verdict | None:
        return _VERDICTS.get(self.result.lower())


@frozen
class Authentication:
    """None is unknown, which is not a pass. ``from_aligned``: whether a domain that passed is that of the sender.

    ``source``: the provider, or the host whose header it is.
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
    """``own`` are the provider's results. For methods that it has none of, those of ``headers``, the values of
    Authentication-Results in their order, count if a host in ``trusted`` wrote them."""
    found = [each for each in own if each.verdict]
    sources = [provider] if found else []
    if trusted and headers:
        host, results = _trusted_results(headers, trusted)
        known = {each.method for each in found}
        if more := [each for each in results if each.verdict and each.method not in known]:
            found, sources = [*found, *more], [*sources, host]
    # A DMARC result is about the domain that it names: another From header may name another one.
    found = [each for each in found if each.method != "dmarc" or each.domain in ("", sender_domain)]
    if not found:
        return UNKNOWN
    verdicts: dict[str, Verdict | None] = dict.fromkeys(METHODS)
    for each in sorted(found, key=lambda each: _RANKS.index(each.verdict)):  # of several, one that passes is enough
        verdicts[each.method] = each.verdict
    aligned = _is_aligned(found, verdicts, sender_domain)
    return Authentication(**verdicts, from_aligned=aligned, source=", ".join(sources))


def _is_aligned(found: Sequence[Result], verdicts: dict[str, Verdict | None], sender: str) -> bool | None:
    """A domain that passed and is the sender's, or above it. One below it may belong to somebody else (a customer of
    github.io), which only the list of public suffixes would tell: unknown."""
    if verdicts["dmarc"] in ("pass", "fail"):
        return verdicts["dmarc"] == "pass"
    domains = [each.domain for each in found if each.verdict == "pass"]
    if any(domain and "." in domain and f".{sender}".endswith(f".{domain}") for domain in domains):
        return True
    are_both_known = verdicts["spf"] is not None and verdicts["dkim"] is not None
    may_be_ours = any(not domain or f".{domain}".endswith(f".{sender}") for domain in domains)
    return False if sender and are_both_known and not may_be_ours else None


def _trusted_results(headers: Sequence[str], trusted: Collection[str]) -> tuple[str, list[Result]]:
    """The host and the results of the topmost header of a trusted host. One that cannot be read has none: those below
    it may be forged."""
    for header in headers:
        host = _HOST.match(header)
        if host and host[1].lower() in trusted:
            return host[1].lower(), [result for statement in _statements(header) for result in _results(statement)]
    return "", []


def _results(statement: str) -> Iterator[Result]:
    if result := _RESULT.match(statement):
        domains = dict(reversed(_DOMAIN.findall(statement)))
        yield Result(result[1], result[2], next((domains[n] for n in _DOMAIN_OF[result[1]] if n in domains), ""))


def _statements(header: str) -> list[str]:
    """What is between semicolons, in lower case, without comments, and with nothing in quotes: senders choose both.

    Empty if a comment or quotes are not closed.
    """
    if len(header) > MAX_RESULTS_CHARS:
        return []
    statements, depth, position = [""], 0, 0
    while position < len(header):
        piece = (_IN_COMMENT if depth else _PIECE).match(header, position)[0]  # type: ignore[index]  # matches anything
        position += len(piece)
        if piece in "()":
            depth += 1 if piece == "(" else -1
            if depth < 0:
                return []
        elif depth == 0 and piece == '"':
            return []
        elif depth == 0 and piece == ";":
            statements.append("")
        elif depth == 0:
            statements[-1] += '""' if piece.startswith('"') else piece
    return [statement.strip().lower() for statement in statements] if depth == 0 else []
