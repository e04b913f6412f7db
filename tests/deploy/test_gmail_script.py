"""The Apps Script of deploy/gmail, run by V8, as Google runs it, with small fakes of its services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from deduplication.identity import compute_canonical_id
from deduplication.mime import parse_mime
from routes.providers.gmail import parse
from tests.support.server import Server
from tests.support.surroundings import ROOT

PROPERTIES = {"MAILONCE_URL": "https://mailonce.example.org/", "MAILONCE_TOKEN": "ingress-token"}

# Makes Google's services out of ``world``; what the script does with them is in ``seen`` and ``world`` afterwards.
FAKES = r"""(() => {
Object.assign(seen, { requests: [], logs: [], triggers: world.triggers || [], created: [], error: null });
Object.assign(seen, { locked: 0, released: 0 });
const names = new Set(world.labels || ['mailonce']);
let clock = 1_000_000;

const message = (given) => ({
  getId: () => given.id,
  isDraft: () => Boolean(given.draft),
  getSubject: () => given.subject,
  getFrom: () => given.from,
  getDate: () => new Date(given.date),
  getBody: () => given.html,
  getPlainBody: () => given.text,
  getTo: () => given.to,
  getHeader: (name) => given.headers[name] || '',
});
const thread = (given) => {
  let loaded = null;
  return {
    getMessages: () => (loaded = loaded || given.messages.map(message)),
    refresh: () => { loaded = null; },
    removeLabel: (label) => { given.labels = given.labels.filter((name) => name !== label.name); },
    addLabel: (label) => { given.labels.push(label.name); },
  };
};
const label = (name) => ({
  name,
  getThreads: (start, max) =>
    world.threads.filter((given) => given.labels.includes(name)).slice(start, start + max).map(thread),
});
const fetch = (url, options) => {
  seen.requests.push({ url, ...options, payload: JSON.parse(options.payload) });
  clock += world.fetch_ms || 0;
  for (const arrived of world.arriving || []) world.threads[0].messages.push(arrived);
  world.arriving = [];
  const answer = (world.answers || {})[JSON.parse(options.payload).message_id] || 200;
  if (answer === 'unreachable') throw new Error('Address unavailable: secret subject');
  return { getResponseCode: () => answer };
};
const trigger = (handler) => ({ getHandlerFunction: () => handler });
Object.assign(globalThis, {
  console: { log: (line) => seen.logs.push(line) },
  GmailApp: {
    getUserLabelByName: (name) => (names.has(name) ? label(name) : null),
    createLabel: (name) => { names.add(name); seen.created.push(name); },
  },
  UrlFetchApp: { fetch },
  PropertiesService: { getScriptProperties: () => ({ getProperty: (name) => world.properties[name] || null }) },
  LockService: {
    getScriptLock: () => ({
      tryLock: () => { seen.locked += 1; return !world.busy; },
      releaseLock: () => { seen.released += 1; },
    }),
  },
  ScriptApp: {
    getProjectTriggers: () => seen.triggers.map(trigger),
    deleteTrigger: (old) => seen.triggers.splice(seen.triggers.indexOf(old.getHandlerFunction()), 1),
    newTrigger: (handler) => ({
      timeBased: () => ({ everyMinutes: (minutes) => ({ create: () => seen.triggers.push(`${handler}/${minutes}`) }) }),
    }),
  },
});
globalThis.Date = class extends Date { static now() { return clock; } };
})();"""


def run(name: str = "pushLabelledMessages", **world: Any) -> dict[str, Any]:
    """Runs the function; what it did to the world, and with which error it ended, if it did."""
    given = {"properties": PROPERTIES, "threads": []} | world
    with MiniRacer() as v8:
        v8.eval(f"const world = {json.dumps(given)}, seen = {{}};{FAKES}")
        v8.eval((ROOT / "deploy/gmail/Code.gs").read_text())
        v8.eval(f"try {{ {name}(); }} catch (error) {{ seen.error = error.message; }}")
        seen: dict[str, Any] = json.loads(str(v8.eval("JSON.stringify({ ...seen, threads: world.threads })")))
    return seen


def message(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"gmail-{number}",
        "subject": "Réunion du 15",
        "from": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T10:00:00+01:00",
        "html": f"<p>Bonjour {number}</p>",
        "text": f"Bonjour {number}",
        "to": "Charles <charles@example.com>, desk@example.com",
        "headers": {"Message-ID": f"<{number}@example.org>"},
    } | fields


def thread(*messages: dict[str, Any], labels: tuple[str, ...] = ("mailonce", "other")) -> dict[str, Any]:
    return {"labels": list(labels), "messages": list(messages)}


def labels_after(seen: dict[str, Any]) -> list[list[str]]:
    return [each["labels"] for each in seen["threads"]]


def test_every_message_of_a_thread_is_pushed_as_the_ingress_takes_it() -> None:
    seen = run(threads=[thread(message(1), message(2))])
    first, second = seen["requests"]
    assert first["url"] == "https://mailonce.example.org/api/ingress/gmail"
    assert (first["method"], first["contentType"]) == ("post", "application/json")
    assert first["headers"] == {"Authorization": "Bearer ingress-token"}
    assert (first["muteHttpExceptions"], first["followRedirects"]) == (True, False)
    assert first["payload"] == {
        "subject": "Réunion du 15",
        "sender": "Ada Lovelace <Ada@Example.org>",
        "date": "2026-11-16T09:00:00.000Z",
        "html": "<p>Bonjour 1</p>",
        "plain": "Bonjour 1",
        "message_id": "<1@example.org>",
        "recipient": "Charles <charles@example.com>, desk@example.com",
    }
    assert second["payload"]["message_id"] == "<2@example.org>"


def test_the_label_comes_off_after_200_for_all_and_no_other_does() -> None:
    seen = run(threads=[thread(message(1), message(2)), thread(message(3))])
    assert labels_after(seen) == [["other"], ["other"]]
    assert len(seen["requests"]) == 3


@pytest.mark.parametrize("answer", [503, 429, 500, 400, 401, 413, 302, 201, 202, 204, "unreachable"])
def test_the_label_stays_after_any_other_answer(answer: int | str) -> None:
    seen = run(threads=[thread(message(1))], answers={"<1@example.org>": answer})
    assert labels_after(seen) == [["mailonce", "other"]]
    assert (seen["error"], seen["released"]) == (None, 1)


@pytest.mark.parametrize("refused", [1, 2])
def test_one_message_refused_keeps_the_label_and_the_other_is_pushed(refused: int) -> None:
    seen = run(threads=[thread(message(1), message(2))], answers={f"<{refused}@example.org>": 503})
    assert labels_after(seen) == [["mailonce", "other"]]
    assert len(seen["requests"]) == 2


def test_threads_that_are_refused_do_not_hold_up_those_behind_them() -> None:
    refused = {f"<{number}@example.org>": 503 for number in range(60)}
    seen = run(threads=[thread(message(number)) for number in range(130)], answers=refused)
    assert [("mailonce" in labels) for labels in labels_after(seen)] == [True] * 60 + [False] * 70
    assert len(seen["requests"]) == 130


def test_a_message_that_arrives_meanwhile_keeps_its_label() -> None:
    seen = run(threads=[thread(message(1))], arriving=[message(2)])
    assert "mailonce" in labels_after(seen)[0]
    assert len(seen["requests"]) == 1


def test_drafts_are_no_messages_yet() -> None:
    seen = run(threads=[thread(message(1), message(2, draft=True))])
    assert [each["payload"]["message_id"] for each in seen["requests"]] == ["<1@example.org>"]
    assert labels_after(seen) == [["other"]]


def test_a_message_id_is_found_in_its_other_spelling() -> None:
    seen = run(threads=[thread(message(1, headers={"Message-Id": "<ses@example.org>"}))])
    assert seen["requests"][0]["payload"]["message_id"] == "<ses@example.org>"


def test_a_run_ends_in_time_and_leaves_the_rest_for_the_next() -> None:
    long_thread = thread(*(message(number) for number in range(4)))
    seen = run(threads=[long_thread, *(thread(message(number)) for number in range(4, 9))], fetch_ms=59_000)
    assert len(seen["requests"]) == 5
    assert ["mailonce" in labels for labels in labels_after(seen)] == [False, False, True, True, True, True]
    assert seen["logs"][-1] == "out of time; the next run goes on"

    halfway = run(threads=[thread(*(message(number) for number in range(9)))], fetch_ms=59_000)
    assert len(halfway["requests"]) == 5
    assert labels_after(halfway) == [["mailonce", "other"]]


def test_another_run_under_way_is_left_alone() -> None:
    seen = run(threads=[thread(message(1))], busy=True)
    assert (seen["requests"], seen["locked"], seen["released"]) == ([], 1, 0)
    assert labels_after(seen) == [["mailonce", "other"]]


@pytest.mark.parametrize("function", ["pushLabelledMessages", "setup"])
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, "MAILONCE_URL"),
        ({"MAILONCE_URL": "http://mailonce.example.org", "MAILONCE_TOKEN": "t"}, "MAILONCE_URL"),
        ({"MAILONCE_URL": "https://mailonce.example.org"}, "MAILONCE_TOKEN"),
    ],
)
def test_a_missing_property_is_named(function: str, properties: dict[str, str], named: str) -> None:
    seen = run(function, threads=[thread(message(1))], properties=properties)
    assert f"script property {named} takes" in seen["error"]
    assert (seen["requests"], seen["triggers"]) == ([], [])


def test_a_missing_label_is_named() -> None:
    seen = run(labels=[])
    assert "run setup()" in seen["error"]
    assert seen["released"] == 1


def test_the_label_may_be_another() -> None:
    properties = PROPERTIES | {"MAILONCE_LABEL": "other"}
    seen = run(threads=[thread(message(1))], labels=["mailonce", "other"], properties=properties)
    assert labels_after(seen) == [["mailonce"]]


def test_setup_makes_the_label_and_one_trigger() -> None:
    seen = run("setup", labels=[], triggers=["pushLabelledMessages", "somethingElse"])
    assert seen["created"] == ["mailonce"]
    assert seen["triggers"] == ["somethingElse", "pushLabelledMessages/5"]
    assert run("setup")["created"] == []


def test_the_log_has_ids_and_statuses_and_no_contents() -> None:
    answers = {"<2@example.org>": 503, "<3@example.org>": "unreachable"}
    seen = run(threads=[thread(message(1), message(2), message(3))], answers=answers)
    assert seen["logs"] == ["gmail-1 200", "gmail-2 503", "gmail-3 could not be pushed: Error"]


def test_what_is_pushed_is_the_same_email_as_the_raw_message() -> None:
    (request,) = run(threads=[thread(message(1))])["requests"]
    raw = parse_mime(
        b"From: Ada Lovelace <ada@example.org>\r\nSubject: =?utf-8?Q?R=C3=A9union?= du 15\r\n"
        b"Date: Mon, 16 Nov 2026 10:00:00 +0100\r\n\r\nBonjour 1"
    )
    assert compute_canonical_id(parse(request["payload"])) == compute_canonical_id(raw)


def test_mailonce_takes_what_is_pushed_and_knows_it_again(tmp_path: Path) -> None:
    (request,) = run(threads=[thread(message(1))])["requests"]
    with Server(tmp_path) as server:
        answers = [server.post(request["payload"]) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["status"] for answer in answers] == ["processed", "already_processed"]


@pytest.mark.parametrize(
    ("header", "date"),
    [
        ("Wed, 11 Oct 2017 18:31:04 -0700 (PDT)", "2017-10-12T01:31:04.000Z"),
        ("some day", "2026-11-16T09:00:00.000Z"),
        ("", "2026-11-16T09:00:00.000Z"),
    ],
)
def test_the_date_is_that_of_the_header_so_that_other_providers_make_the_same_email_of_it(
    header: str, date: str
) -> None:
    headers = {"Message-ID": "<1@example.org>", "Date": header}
    (pushed,) = run(threads=[thread(message(headers=headers))])["requests"]
    assert pushed["payload"]["date"] == date
