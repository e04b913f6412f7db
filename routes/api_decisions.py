"""/api/admin/decisions: what became of each email and why, and letting go after all what was stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, jsonify, request

from deduplication.claims import Gate
from deduplication.journal.base import Released
from orchestrator.build import Parts, Service
from orchestrator.intake import Status
from orchestrator.operations.decision_index import GATES as GATES
from orchestrator.operations.decision_index import Filter
from orchestrator.operations.decisions import (
    ReleaseHow,
    list_decisions,
    read_decision,
    release,
    release_matching,
    shown,
    shown_in_full,
)
from routes.api_admin import BY, admins_only, optional_json
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
from routes.responses import Answer, released

FILTERS = ("status", "gate", "provider", "destination", "q", "since", "until")
FLAGS = ("force", "dry_run")


def decisions_blueprint(service: Service) -> Blueprint:
    api = admins_only("api_decisions", service)
    _add_reading(api, service.parts)
    _add_releasing(api, service)
    return api


def _add_reading(api: Blueprint, parts: Parts) -> None:
    @api.get("/decisions")
    def listed() -> Answer:
        check_fields(request.args, (*FILTERS, "cursor", "limit"))
        wanted, limit = read_filter(request.args), read_limit(request.args)
        try:
            page = list_decisions(parts, wanted, limit, request.args.get("cursor"))
        except ValueError as error:
            raise InvalidPayload(OF_ANOTHER, field="cursor") from error
        decisions = [shown(each) for each in page.decisions]
        return jsonify({"success": True, "decisions": decisions, "more": page.next is not None, "next": page.next}), 200

    @api.get("/decisions/<id_>")
    def one(id_: str) -> Answer:
        found = read_decision(parts, id_)
        if found is None:
            return released(id_, Released.UNKNOWN)
        return jsonify({"success": True, **shown_in_full(parts, found)}), 200


def _add_releasing(api: Blueprint, service: Service) -> None:
    parts = service.parts

    @api.post("/decisions/<id_>/release")
    def release_one(id_: str) -> Answer:
        document = optional_json()
        check_fields(document, FLAGS, "body")
        how = ReleaseHow(**read_flags(document, FLAGS), at_once=service.queue is None)
        answer = release(parts, id_, how, BY)
        after = read_decision(parts, id_)
        return released(id_, answer, dry_run=how.dry_run, decision=shown(after) if after else None)

    @api.post("/decisions/release")
    def release_many() -> Answer:
        document = json_object(request.content_type, request.get_data())
        check_fields(document, (*FILTERS, *FLAGS, "all"), "body")
        how, wanted = ReleaseHow(**read_flags(document, FLAGS)), read_filter(document)
        check_aim(document, FILTERS, has_filter=wanted != Filter(), dry_run=how.dry_run)
        answers = Counter(answer for _, answer in release_matching(parts, wanted, how, BY))
        return jsonify({"success": True, "dry_run": how.dry_run, "matched": answers.total(), **answers}), 200


def read_filter(given: Mapping[str, Any]) -> Filter:
    """Raises InvalidPayload."""
    status, gate = read_choice(given, "status", Status), read_choice(given, "gate", GATES)
    return Filter(
        status=Status(status) if status else None,
        gate=Gate(gate) if gate else None,
        provider=read_words(given, "provider", "the name of a provider"),
        destination=read_words(given, "destination", "the name of a destination"),
        q=read_words(given, "q", "a part of a sender or subject, or an id"),
        since_ms=read_moment_ms(given, "since"),
        until_ms=read_moment_ms(given, "until"),
    )
