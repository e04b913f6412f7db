"""What mailonce.toml means, in plain words, for ``mailonce check``. No secrets, header values or paths of URLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from orchestrator.config.file import quoted
from orchestrator.config.model import LOG_URL, AlertsConfig, Condition, Config, DestinationConfig, RouteConfig
from orchestrator.delivery.signing import public_keys
from orchestrator.routing import MOST_CHARS_FOR_A_REGEX, Trial


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
    return "\n".join(f"{title}\n{_indented(lines)}" for title, lines in sections.items() if lines)


def explained(trials: Iterable[Trial]) -> str:
    """What ``Router.explain`` found, one line for each route and one for each of its conditions."""
    return "\n".join(line for trial in trials for line in _trial(trial))


def condition_in_words(condition: Condition) -> str:
    if condition.equals is not None:
        test = f"is {quoted(condition.equals)}"
    elif condition.contains is not None:
        test = f"contains {quoted(condition.contains)}"
    else:
        test = f"matches the regex {_regex(condition.regex or '')}"
    field = "a recipient" if condition.field == "recipient" else f"the {condition.field}"
    return f"{field} {test}{_how(condition)}"


def _regex(regex: str) -> str:
    """As one would write it in the file, where that fits on a line."""
    return f"'{regex}'" if regex.isprintable() and "'" not in regex else quoted(regex)


def _how(condition: Condition) -> str:
    notes = ["accents and case count"] if condition.exact else []
    if condition.regex is not None and condition.field == "body":
        notes.append(f"in its first {MOST_CHARS_FOR_A_REGEX:,} characters")
    return f" ({', '.join(notes)})" if notes else ""


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _destination(name: str, config: DestinationConfig) -> str:
    if config.url == LOG_URL:
        return f"{name}: printed, sent nowhere" + _switched_off(config)
    parts = [
        f"{name}: to {urlsplit(config.url).hostname} by {urlsplit(config.url).scheme}",
        _signed(config.secret),
        _format(config),
        f"up to {_count(config.max_attempts, 'attempt')}",
        f"at most {config.rate}" if config.rate else "at any rate",
        f"waits {config.connect_timeout_s:g} s to connect and {config.read_timeout_s:g} s for the answer",
        *_breaker(config),
        *([f"with the headers {', '.join(config.headers)}"] if config.headers else []),
        _content(config.content_window_s),
    ]
    return ", ".join(parts) + _switched_off(config)


def _alerts(config: AlertsConfig) -> str:
    lasting = f"what is wrong for {config.after_s:g} s"
    if not config.url:
        return f"shown on /health and told nobody: {lasting}"
    address = urlsplit(config.url)
    return f"to {address.hostname} by {address.scheme}, {_signed(config.secret)}: {lasting}"


def _switched_off(config: DestinationConfig) -> str:
    return "" if config.enabled else " (switched off)"


def _signed(secrets: Sequence[str]) -> str:
    """With the public keys, which the receiver needs and anybody may see."""
    if not secrets:
        return "not signed"
    public = "".join(f", public key {key}" for key in public_keys(secrets))
    return f"signed{public}" if len(secrets) == 1 else f"signed with {len(secrets)} secrets{public}"


def _format(config: DestinationConfig) -> str:
    if config.format == "form":
        return "as a form"
    return "as JSON, as a form where JSON is refused" if config.fallback_form else "as JSON"


def _breaker(config: DestinationConfig) -> Iterator[str]:
    if config.breaker_failures:
        yield f"pauses {config.breaker_pause_s:g} s after {_count(config.breaker_failures, 'failure')} in a row"


def _content(window_s: int | None) -> str:
    if window_s is None:
        return "the same words from messages once in 72 hours, from emails as often as they come"
    return f"the same words once in {window_s} s" if window_s else "the same words as often as they come"


def _routes(config: Config) -> Iterator[str]:
    only = tuple(config.destinations)
    for number, route in enumerate(config.routes, 1):
        yield f"{number}. {quoted(route.name)}: {_match(route)}"
        named = route.destinations or (only if len(only) == 1 else ())
        goes = f"goes to {', '.join(named)}" if named else "names no destination"
        goes_on = [] if route.stop or number == len(config.routes) else ["the routes after it are asked too"]
        yield "   " + "; ".join([goes, *_gates(route), *goes_on])
    yield "What none of them says: subject groups as SUBJECT_GROUPS, media listed, content as the destination says"


def _match(route: RouteConfig) -> str:
    if not route.match:
        return "every email"
    return (" or " if route.any else " and ").join(map(condition_in_words, route.match))


def _gates(route: RouteConfig) -> Iterator[str]:
    if route.subject_groups is not None:
        yield f"subject groups: {route.subject_groups}"
    if route.media is not None:
        yield f"media: {route.media}"
    if route.content is not None:
        yield f"content: {'on' if route.content else 'off'}"
    if route.realtime_only:
        yield "only what is newer than the service"
    if route.identity_by_recipient:
        yield "each recipient counts on its own"


def _patterns(config: Config) -> Iterator[str]:
    for pattern in config.patterns:
        phrases = "".join(f"{quoted(phrase)} and " for phrase in pattern.phrases)
        yield f"{pattern.name}: a subject with {phrases}the regex {_regex(pattern.regex)}"


def _media(config: Config) -> Iterator[str]:
    yield f"links to {', '.join(config.media.hosts)} are files" if config.media.hosts else "no link is a file"
    if config.media.resolve:
        yield f"links to {', '.join(config.media.resolve)} are followed to where they lead"


def _off(config: Config) -> Iterator[str]:
    for name, destination in config.destinations.items():
        yield from (f"destination {name}: {what}" for what in _off_at(destination))
    for index, route in enumerate(config.routes):
        yield from (f"route {quoted(route.name)}: {what}" for what in _off_on(route, config))
        if stopped := _stopped_by(config.routes[:index]):
            yield f"route {quoted(route.name)}: never asked, since {quoted(stopped.name)} takes every email"
    yield from (f"alarm {condition}: not judged" for condition in config.alerts.off)


def _off_at(config: DestinationConfig) -> Iterator[str]:
    if not config.enabled:
        yield "switched off; what goes there waits"
    if config.url == LOG_URL:
        return
    if not config.secret:
        yield "no signature"
    if not config.breaker_failures:
        yield "no breaker"
    if config.content_window_s == 0:
        yield "no content gate"


def _off_on(route: RouteConfig, config: Config) -> Iterator[str]:
    if route.subject_groups == "off":
        yield "no subject groups"
    if route.media == "off":
        yield "no media"
    if route.content is False:
        yield "no content gate"
    named = route.destinations or tuple(config.destinations)
    if not any(config.destinations[name].enabled for name in named):
        yield "all its destinations are switched off"


def _stopped_by(earlier: Sequence[RouteConfig]) -> RouteConfig | None:
    return next((route for route in earlier if route.stop and not route.match), None)


def _trial(trial: Trial) -> Iterator[str]:
    verdict = "matches" if trial.matched else "does not match"
    late = "" if trial.reached else ", but is not asked: a route before it stopped"
    yield f"{quoted(trial.route.name)} {verdict}{late}"
    for condition, held in zip(trial.route.match, trial.held, strict=True):
        yield f"  {'yes' if held else 'no'}: {condition_in_words(condition)}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
