"""In plain words: what happened to an email and why, and what mailonce.toml means (``mailonce check``).

Of the configuration, no secrets, header values or paths of URLs are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deduplication.journal.entry import DeliveryStatus, Entry, Stop
from deduplication.names import Gate, Kind
from orchestrator.config.file import quoted
from orchestrator.config.model import LOG_URL, AlertsConfig, Condition, Config, DestinationConfig, RouteConfig
from orchestrator.delivery.signing import public_keys
from orchestrator.pipeline import Status
from orchestrator.routing import MOST_CHARS_FOR_A_REGEX, Trial

if TYPE_CHECKING:
    from orchestrator.operations.deliveries import DeliveryView

IN_WORDS = {Gate.IDENTITY: "email id", Gate.SUBJECT_GROUP: "subject group", Gate.MEDIA: "file", Gate.CONTENT: "text"}

When = Callable[[int], str]


# What happened to an email


def explain(
    entry: Entry, status: Status, original: Entry | None, deliveries: Sequence[DeliveryView], when: When
) -> str:
    """One sentence. ``original``: the email that it repeats, if that is still in the journal."""
    match status:
        case Status.ALREADY_PROCESSING:
            to = [each.destination for each in deliveries if each.status is DeliveryStatus.CLAIMED]
            return f"Being delivered to {_list(to)}, since {when(entry.created_ms)}"
        case Status.RETRY_LATER:
            return _returned(entry, deliveries, when)
        case Status.SKIPPED_OLD:
            return "Not sent: it is older than the service, and its route accepts only new emails"
    if entry.stop and entry.outcome == DeliveryStatus.SKIPPED:
        return f"Not sent: {_met(entry.stop, original, when)}"
    if not any(each.destination for each in deliveries):
        return "Published by a script"
    outcome = "; ".join(_outcomes(entry, deliveries, when))
    if entry.released_ms is None:
        return outcome[0].upper() + outcome[1:]
    why = f" ({_met(entry.stop, original, when)})" if entry.stop else ""
    return f"Released at {when(entry.released_ms)}, after it was stopped{why}: {outcome}"


def _returned(entry: Entry, deliveries: Sequence[DeliveryView], when: When) -> str:
    delivered = [each.destination for each in deliveries if each.status is DeliveryStatus.DELIVERED]
    but = f" (already delivered to {_list(delivered)})" if delivered else ""
    if entry.outcome == DeliveryStatus.CLAIMED:
        return (
            f"Not finished{but}: its request at {when(entry.created_ms)} ended without a result. It continues when "
            "the provider sends it again"
        )
    failed = [each.attempts[-1].error for each in deliveries if each.attempts and each.attempts[-1].error]
    return f"Returned to its provider, which sends it again{but}{f': {failed[0]}' if failed else ''}"


def _met(stop: Stop, original: Entry | None, when: When) -> str:
    """The name that it has in common with another email, and what happened to that one."""
    value = stop.name.value[:12] if stop.name.kind is Kind.CONTENT else stop.name.value
    what = f"{IN_WORDS.get(stop.gate, stop.gate)} {value}"
    if stop.original is None:
        return f"its {what} is marked as done, by another program or an import"
    seen_ms = original.created_ms if original else stop.first_seen_ms
    other = f"the email of {when(seen_ms)}" if seen_ms is not None else f"email {stop.original}"
    same = "same first words" if stop.gate is Gate.CONTENT else f"same {what}"
    if original is None:
        return f"{same} as {other}, which is no longer stored"
    sender = f" from {original.about.sender}" if original.about.sender else ""
    return f"{same} as {other}{sender}{_fate(original)}"


def _fate(original: Entry) -> str:
    fates = {
        DeliveryStatus.DELIVERED: "delivered to",
        DeliveryStatus.WAITING: "waiting for",
        DeliveryStatus.CLAIMED: "being delivered to",
        DeliveryStatus.DEAD: "which could not be delivered to",
    }
    for status, words in fates.items():
        if names := sorted(each.destination for each in original.deliveries if each.status is status):
            return f", {words} {_list(names)}" if any(names) else ", published by a script"
    return ""


def _outcomes(entry: Entry, deliveries: Sequence[DeliveryView], when: When) -> Iterator[str]:
    """One part for each kind of result."""
    ended = {each.destination: each.ended_ms for each in entry.deliveries}
    by_status = {status: [each for each in deliveries if each.status is status] for status in DeliveryStatus}
    if delivered := [each.destination for each in by_status[DeliveryStatus.DELIVERED]]:
        last_ms = max(ended[each] or 0 for each in delivered)
        yield f"delivered to {_list(delivered)}" + (f" at {when(last_ms)}" if last_ms else "")
    for each in by_status[DeliveryStatus.WAITING]:
        tries = f", after {_count(each.tries, 'attempt')}" if each.tries else ""
        next_try = f"; next attempt at {when(each.next_try)}" if each.next_try else ""
        yield f"waiting for {each.destination}{_because(each, ' (', ')')}{tries}{next_try}"
    for each in by_status[DeliveryStatus.DEAD]:
        tries = f" after {_count(each.tries, 'attempt')}" if each.tries else ""
        yield f"not delivered to {each.destination}, given up{tries}{_because(each, ': ')}"
    if skipped := [each.destination for each in by_status[DeliveryStatus.SKIPPED]]:
        yield f"not sent to {_list(skipped)}, which received the same text before"


def _because(delivery: DeliveryView, before: str, after: str = "") -> str:
    """Reasons begin with the destination, which the sentence has named already."""
    reason = (delivery.reason or "").removeprefix(f"{delivery.destination}: ")
    return f"{before}{reason}{after}" if reason else ""


def said_at(moment_ms: int, now_ms: int, tz: tzinfo) -> str:
    """The time alone, if it is today."""
    moment, now = (datetime.fromtimestamp(each / 1000, tz) for each in (moment_ms, now_ms))
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


# What the configuration means


def shown(config: Config) -> str:
    """Destinations, routes, patterns, media and providers as the service will use them, and what is off."""
    sections = {
        "Destinations": [_destination(name, each) for name, each in config.destinations.items()],
        "Routes, in order": list(_routes(config)),
        "Subject patterns": list(_patterns(config)),
        "Media": list(_media(config)),
        "Providers": sorted(config.providers),
        "Alarms": [_alerts(config.alerts)],
        "Off": list(_off(config)),
    }
    return "\n".join("\n  ".join([title, *lines]) for title, lines in sections.items() if lines)


def explained(trials: Iterable[Trial]) -> str:
    """What ``Router.explain`` found: a line for each route, and one for each of its conditions."""
    lines = []
    for trial in trials:
        verdict = "matches" if trial.matched else "does not match"
        late = "" if trial.reached else ", but is not evaluated: an earlier route stopped"
        lines.append(f"{quoted(trial.route.name)} {verdict}{late}")
        for condition, held in zip(trial.route.match, trial.held, strict=True):
            lines.append(f"  {'yes' if held else 'no'}: {condition_in_words(condition)}")
    return "\n".join(lines)


def condition_in_words(condition: Condition) -> str:
    if condition.equals is not None:
        test = f"is {quoted(condition.equals)}"
    elif condition.contains is not None:
        test = f"contains {quoted(condition.contains)}"
    else:
        test = f"matches the regex {_regex(condition.regex or '')}"
    notes = ["accents and case count"] if condition.exact else []
    if condition.regex is not None and condition.field == "body":
        notes.append(f"in its first {MOST_CHARS_FOR_A_REGEX:,} characters")
    field = "a recipient" if condition.field == "recipient" else f"the {condition.field}"
    return f"{field} {test}" + (f" ({', '.join(notes)})" if notes else "")


def _regex(regex: str) -> str:
    """As in the file, if it fits on a line."""
    return f"'{regex}'" if regex.isprintable() and "'" not in regex else quoted(regex)


def _destination(name: str, config: DestinationConfig) -> str:
    off = "" if config.enabled else " (switched off)"
    if config.url == LOG_URL:
        return f"{name}: printed, sent nowhere{off}"
    as_json = "as JSON, as a form if JSON is refused" if config.fallback_form else "as JSON"
    parts = [
        f"{name}: to {urlsplit(config.url).hostname} by {urlsplit(config.url).scheme}",
        _signed(config.secret),
        "as a form" if config.format == "form" else as_json,
        f"up to {_count(config.max_attempts, 'attempt')}",
        f"at most {config.rate}" if config.rate else "at any rate",
        f"waits {config.connect_timeout_s:g} s to connect and {config.read_timeout_s:g} s for the answer",
    ]
    if config.breaker_failures:
        failures = _count(config.breaker_failures, "failure")
        parts.append(f"circuit breaker opens for {config.breaker_pause_s:g} s after {failures} in a row")
    if config.headers:
        parts.append(f"with the headers {', '.join(config.headers)}")
    window_s = config.content_window_s
    if window_s is None:
        parts.append("the same text of messages once in 72 hours, of emails every time")
    else:
        parts.append(f"the same text once in {window_s} s" if window_s else "the same text every time")
    return ", ".join(parts) + off


def _signed(secrets: Sequence[str]) -> str:
    """With the public keys, which the receiver needs."""
    if not secrets:
        return "not signed"
    public = "".join(f", public key {key}" for key in public_keys(secrets))
    return f"signed{public}" if len(secrets) == 1 else f"signed with {len(secrets)} secrets{public}"


def _alerts(config: AlertsConfig) -> str:
    lasting = f"problems that last {config.after_s:g} s"
    if not config.url:
        return f"shown on /health only: {lasting}"
    address = urlsplit(config.url)
    return f"to {address.hostname} by {address.scheme}, {_signed(config.secret)}: {lasting}"


def _routes(config: Config) -> Iterator[str]:
    only = tuple(config.destinations)
    for number, route in enumerate(config.routes, 1):
        conditions = (" or " if route.any else " and ").join(map(condition_in_words, route.match))
        yield f"{number}. {quoted(route.name)}: {conditions or 'every email'}"
        named = route.destinations or (only if len(only) == 1 else ())
        goes = f"goes to {', '.join(named)}" if named else "names no destination"
        goes_on = [] if route.stop or number == len(config.routes) else ["later routes are evaluated too"]
        yield "   " + "; ".join([goes, *_gates(route), *goes_on])
    yield "Unless a route says otherwise: subject groups as SUBJECT_GROUPS, media listed, content by destination"


def _gates(route: RouteConfig) -> Iterator[str]:
    if route.subject_groups is not None:
        yield f"subject groups: {route.subject_groups}"
    if route.media is not None:
        yield f"media: {route.media}"
    if route.content is not None:
        yield f"content: {'on' if route.content else 'off'}"
    if route.realtime_only:
        yield "only emails newer than the service"
    if route.identity_by_recipient:
        yield "each recipient counts separately"


def _patterns(config: Config) -> Iterator[str]:
    for pattern in config.patterns:
        phrases = "".join(f"{quoted(phrase)} and " for phrase in pattern.phrases)
        yield f"{pattern.name}: a subject with {phrases}the regex {_regex(pattern.regex)}"


def _media(config: Config) -> Iterator[str]:
    yield f"links to {', '.join(config.media.hosts)} are files" if config.media.hosts else "no link is a file"
    if config.media.resolve:
        yield f"links to {', '.join(config.media.resolve)} are followed to their final address"


def _off(config: Config) -> Iterator[str]:
    for name, each in config.destinations.items():
        sends = each.url != LOG_URL
        switches = {
            "switched off; emails for it are queued": not each.enabled,
            "no signature": sends and not each.secret,
            "no circuit breaker": sends and not each.breaker_failures,
            "no content gate": sends and each.content_window_s == 0,
        }
        yield from (f"destination {name}: {words}" for words, is_off in switches.items() if is_off)
    catch_all = None
    for route in config.routes:
        named = route.destinations or tuple(config.destinations)
        switches = {
            "no subject groups": route.subject_groups == "off",
            "no media": route.media == "off",
            "no content gate": route.content is False,
            "all its destinations are switched off": not any(config.destinations[name].enabled for name in named),
            f"never evaluated, since {quoted(catch_all or '')} matches every email": catch_all is not None,
        }
        yield from (f"route {quoted(route.name)}: {words}" for words, is_off in switches.items() if is_off)
        if catch_all is None and route.stop and not route.match:
            catch_all = route.name
    yield from (f"alarm {condition}: disabled" for condition in config.alerts.off)
