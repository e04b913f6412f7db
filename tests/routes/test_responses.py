"""What happened, as it is answered."""

from __future__ import annotations

from flask import Flask, jsonify

from orchestrator.pipeline import Outcome, Status
from routes.responses import OUR_OWN, outcomes_of_emails


def test_an_outcome_is_written_as_all_other_answers_are() -> None:
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    with app.app_context():
        outcome = Outcome(Status.RETRY_LATER, "id", error="away, é", retry_after_s=10, warnings=("a", "b"))
        answer, status, headers = outcomes_of_emails([outcome], OUR_OWN)  # type: ignore[misc]
        usual = jsonify(answer.get_json())

        assert (answer.data, answer.content_type) == (usual.data, usual.content_type)
        assert (status, headers) == (503, {"Retry-After": "10"})
