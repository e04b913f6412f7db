"""/api/admin/deliveries and /api/admin/stats: what was sent where, what waits, what is dead, and sending it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, jsonify, request

from deduplication.journal.base import Replayed
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.listing import Position
from orchestrator.build import Parts, Service
from orchestrator.delivery.webhook import unpack
from orchestrator.operations.deliveries import (
    Counts,
    How,
    Wanted,
    delivery_id,
    find_deliveries,
    look_at,
    read_cursor,
    read_delivery,
    read_page,
    replay,
    replay_at_once,
    shown,
)
from orchestrator.operations.figures import Span, shown_figures
from routes.api_admin import admins_only, optional_json
from routes.providers.base import InvalidPayload, json_object
from routes.questions import (
    OF_ANOTHER,
    check_aim,
    check_fields,
    read_choice,
    read_flags,
    read_limit,
    read_moment_ms,
    read_words,
)
from routes.responses import Answer, replayed

FLAGS = ("force", "new_id", "dry_run")
FILTERS = ("status", "destination", "since", "until")


def deliveries_blueprint(service: Service) -> Blueprint:
    api = admins_only("api_deliveries", service)
    _add_reading(api, service.parts)
    _add_replaying(api, service.parts)
    return api


def _add_reading(api: Blueprint, parts: Parts) -> None:
    counts = Counts(parts.journal)

    @api.get("/stats")
    def numbers() -> Answer:
        check_fields(request.args, ("span",))
        span = Span(read_choice(request.args, "span", Span) or Span.DAY)
        return jsonify({"success": True, **shown_figures(parts, counts, span)}), 200

    @api.get("/deliveries")
    def listed() -> Answer:
        limit = read_limit(request.args)
        check_fields(request.args, (*FILTERS, "limit", "cursor"))
        wanted = read_wanted(request.args)
        return jsonify({"success": True, **read_page(parts, wanted, limit, read_after(wanted, request.args))}), 200

    @api.get("/deliveries/<id_>")
    def one(id_: str) -> Answer:
        found = read_delivery(parts.journal, id_)
        if found is None:
            return replayed(id_, Replayed.UNKNOWN)
        kept = parts.journal.payload(found[0].id)
        (seen,) = look_at(parts, [found])
        return jsonify({"success": True, **shown(seen), "payload": unpack(kept) if kept else None}), 200


def _add_replaying(api: Blueprint, parts: Parts) -> None:
    @api.post("/deliveries/<id_>/replay")
    def replay_one(id_: str) -> Answer:
        document = optional_json()
        check_fields(document, FLAGS, "body")
        how = How(**read_flags(document, FLAGS))
        answer = replay_at_once(parts, id_, how)
        after = read_delivery(parts.journal, id_)
        delivery = shown(*look_at(parts, [after])) if after else None
        return replayed(id_, answer, dry_run=how.dry_run, delivery=delivery)

    @api.post("/deliveries/replay")
    def replay_many() -> Answer:
        document = json_object(request.content_type, request.get_data())
        check_fields(document, (*FILTERS, *FLAGS, "all"), "body")
        how, wanted = How(**read_flags(document, FLAGS)), read_wanted(document)
        check_aim(document, FILTERS, has_filter=wanted != Wanted(), dry_run=how.dry_run)
        found = [
            delivery_id(each.entry.id, each.delivery.destination) for each in find_deliveries(parts.journal, wanted)
        ]
        answers = Counter(replay(parts.journal, id_, how, parts.sources.new_token) for id_ in found)
        return jsonify({"success": True, "dry_run": how.dry_run, "matched": answers.total(), **answers}), 200


def read_wanted(given: Mapping[str, Any]) -> Wanted:
    status = read_choice(given, "status", DeliveryStatus)
    return Wanted(
        DeliveryStatus(status) if status else None,
        read_words(given, "destination", "the name of a destination"),
        read_moment_ms(given, "since"),
        read_moment_ms(given, "until"),
    )


def read_after(wanted: Wanted, given: Mapping[str, str]) -> Position | None:
    cursor = given.get("cursor")
    if not cursor:
        return None
    try:
        return read_cursor(wanted, cursor)
    except (ValueError, TypeError) as error:
        raise InvalidPayload(OF_ANOTHER, field="cursor") from error
