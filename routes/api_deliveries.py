"""/api/admin/deliveries and /api/admin/stats: what was sent where, what waits, what is dead, and sending it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from flask import Blueprint, jsonify, request

from deduplication.dates import parse_date
from deduplication.journal.base import Replayed
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry
from orchestrator.build import Parts, Service
from orchestrator.delivery.webhook import unpack
from orchestrator.operations.deliveries import (
    How,
    Wanted,
    delivery_id,
    find_deliveries,
    read_delivery,
    replay,
    stats,
)
from routes.api_admin import admins_only
from routes.providers.base import InvalidPayload, json_object
from routes.responses import Answer, replayed

MOST_LISTED = 1000
FLAGS = ("force", "new_id", "dry_run")
FILTERS = ("status", "destination", "since", "until")


def deliveries_blueprint(service: Service) -> Blueprint:
    api = admins_only("api_deliveries", service)
    _add_reading(api, service.parts)
    _add_replaying(api, service)
    return api


def _add_reading(api: Blueprint, parts: Parts) -> None:
    @api.get("/stats")
    def numbers() -> Answer:
        return jsonify({"success": True, **stats(parts)}), 200

    @api.get("/deliveries")
    def listed() -> Answer:
        limit = _limit(request.args.get("limit", "100"))
        unknown = set(request.args) - {*FILTERS, "limit"}
        if unknown:
            raise InvalidPayload(
                "the query takes status, destination, since, until and limit", field=sorted(unknown)[0]
            )
        found = list(islice(find_deliveries(parts.journal, _wanted(request.args)), limit + 1))
        body = {"success": True, "deliveries": [shown(*each) for each in found[:limit]], "more": len(found) > limit}
        return jsonify(body), 200

    @api.get("/deliveries/<id_>")
    def one(id_: str) -> Answer:
        found = read_delivery(parts.journal, id_)
        if found is None:
            return replayed(id_, Replayed.UNKNOWN)
        kept = parts.journal.payload(found[0].id)
        return jsonify({"success": True, **shown(*found), "payload": unpack(kept) if kept else None}), 200


def _add_replaying(api: Blueprint, service: Service) -> None:
    parts = service.parts

    @api.post("/deliveries/<id_>/replay")
    def replay_one(id_: str) -> Answer:
        how = _how(_optional_json())
        answer = replay(parts.journal, id_, how, parts.sources.new_token)
        if answer == Replayed.REPLAYED and service.queue is None:
            parts.sender.deliver_stored(*id_.split(":", 1))  # an operator sees at once what became of it
        after = read_delivery(parts.journal, id_)
        return replayed(id_, answer, dry_run=how.dry_run, delivery=shown(*after) if after else None)

    @api.post("/deliveries/replay")
    def replay_many() -> Answer:
        document = json_object(request.content_type, request.get_data())
        filters = {name: document.pop(name) for name in FILTERS if name in document}
        how = _how(document)
        found = [
            delivery_id(entry.id, each.destination) for entry, each in find_deliveries(parts.journal, _wanted(filters))
        ]
        answers = Counter(replay(parts.journal, id_, how, parts.sources.new_token) for id_ in found)
        return jsonify({"success": True, "dry_run": how.dry_run, "matched": answers.total(), **answers}), 200


def shown(entry: Entry, delivery: Delivery) -> dict[str, Any]:
    """Everything but the payload, with readable times."""
    return {
        "id": delivery_id(entry.id, delivery.destination),
        "email_id": entry.about.item,
        "destination": delivery.destination,
        "status": delivery.status,
        "webhook_id": delivery.webhook_id,
        "created": _time(entry.created_ms),
        "delivered": _time(delivery.delivered_ms),
        "next_try": _time(delivery.next_try_ms),
        "tries": delivery.tries,
        "attempts": [{"at": _time(each.at_ms), **_without_time(asdict(each))} for each in delivery.attempts],
        "receiver_id": delivery.receiver_id,
        "reason": delivery.reason,
    }


def _without_time(attempt: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if name != "at_ms"}


def _time(moment_ms: int | None) -> str | None:
    return (
        None if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
    )


def _wanted(given: Mapping[str, Any]) -> Wanted:
    status = given.get("status")
    if status is not None and status not in list(DeliveryStatus):
        raise InvalidPayload(f"status takes one of {', '.join(DeliveryStatus)}", field="status")
    destination = given.get("destination")
    if destination is not None and not isinstance(destination, str):
        raise InvalidPayload("destination takes the name of a destination", field="destination")
    return Wanted(
        DeliveryStatus(status) if status else None,
        destination or None,
        _moment(given, "since"),
        _moment(given, "until"),
    )


def _moment(given: Mapping[str, Any], field: str) -> int | None:
    value = given.get(field)
    if value is None:
        return None
    moment = parse_date(value) if isinstance(value, str) else None
    if moment is None:
        raise InvalidPayload(f"{field} takes a time such as 2026-11-16T09:00:00Z", field=field)
    return int(moment.timestamp() * 1000)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_LISTED):
        raise InvalidPayload(f"limit takes 1 to {MOST_LISTED}", field="limit")
    return int(text)


def _optional_json() -> dict[str, Any]:
    body = request.get_data()
    return json_object(request.content_type, body) if body else {}


def _how(document: dict[str, Any]) -> How:
    for name, value in document.items():
        if name not in FLAGS:
            raise InvalidPayload(f"the body takes {', '.join((*FILTERS, *FLAGS))}", field=name)
        if not isinstance(value, bool):
            raise InvalidPayload(f"{name} takes true or false", field=name)
    return How(**document)
