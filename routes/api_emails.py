"""/api/admin/decisions and /api/admin/deliveries: what happened to each email, releasing and replaying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, jsonify, request
from pydantic import BaseModel

from deduplication.again import Refusal
from orchestrator.build import Service
from orchestrator.operations.decisions import (
    Decision,
    Release,
    list_decisions,
    read_decision,
    release,
    release_matching,
)
from orchestrator.operations.deliveries import (
    DeliveryView,
    Replay,
    list_deliveries,
    read_delivery,
    replay,
    replay_matching,
)
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from routes.api_admin import BY, admins_only, json_body, optional_json
from routes.questions import (
    RELEASE_ANSWERS,
    REPLAY_ANSWERS,
    DecisionQuery,
    DeliveryQuery,
    ReleaseMany,
    ReplayMany,
    only,
    read,
)
from routes.responses import Answer, failed


def emails_blueprint(service: Service) -> Blueprint:
    api = admins_only("api_emails", service)

    @api.get("/decisions")
    def decisions() -> Answer:
        asked = read(DecisionQuery, request.args)
        return _found(list_decisions(service, only(DecisionFilter, asked), asked.limit, asked.cursor))

    @api.get("/deliveries")
    def deliveries() -> Answer:
        asked = read(DeliveryQuery, request.args)
        return _found(list_deliveries(service, only(DeliveryFilter, asked), asked.limit, asked.cursor))

    @api.get("/decisions/<id_>")
    def decision(id_: str) -> Answer:
        found = read_decision(service, id_)
        return _found(found) if found else _answer(RELEASE_ANSWERS, id_, Refusal.UNKNOWN)

    @api.get("/deliveries/<id_>")
    def delivery(id_: str) -> Answer:
        found = read_delivery(service, id_)
        return _found(found) if found else _answer(REPLAY_ANSWERS, id_, Refusal.UNKNOWN)

    @api.post("/decisions/<id_>/release")
    def release_one(id_: str) -> Answer:
        asked = read(Release, optional_json(), "body")
        answer = release(service, id_, asked, BY, at_once=True)
        after = read_decision(service, id_)
        shown = only(Decision, after).model_dump(mode="json") if after else None
        return _answer(RELEASE_ANSWERS, id_, answer, dry_run=asked.dry_run, decision=shown)

    @api.post("/deliveries/<id_>/replay")
    def replay_one(id_: str) -> Answer:
        asked = read(Replay, optional_json(), "body")
        answer = replay(service, id_, asked, at_once=True)
        after = read_delivery(service, id_)
        shown = only(DeliveryView, after).model_dump(mode="json") if after else None
        return _answer(REPLAY_ANSWERS, id_, answer, dry_run=asked.dry_run, delivery=shown)

    @api.post("/decisions/release")
    def release_many() -> Answer:
        asked = read(ReleaseMany, json_body(), "body")
        answers = release_matching(service, only(DecisionFilter, asked), only(Release, asked), BY)
        return _matched(asked.dry_run, answers)

    @api.post("/deliveries/replay")
    def replay_many() -> Answer:
        asked = read(ReplayMany, json_body(), "body")
        return _matched(asked.dry_run, replay_matching(service, only(DeliveryFilter, asked), only(Replay, asked)))

    return api


def _found(model: BaseModel) -> Answer:
    return jsonify({"success": True, **model.model_dump(mode="json")}), 200


def _answer(answers: Mapping[str, tuple[int, str]], id_: str, answer: str, **more: Any) -> Answer:
    status, text = answers.get(answer, (409, answer.replace("_", " ")))
    if status != 200:
        return failed(status, answer, text, id=id_)
    return jsonify({"success": True, "status": answer, "id": id_, "message": text, **more}), 200


def _matched(dry_run: bool, answers: Counter[str]) -> Answer:
    return jsonify({"success": True, "dry_run": dry_run, "matched": answers.total(), **answers}), 200
