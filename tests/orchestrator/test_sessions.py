"""Sessions of the web page, on one machine and on several that share their notes."""

from __future__ import annotations

from pathlib import Path

from deduplication import members
from deduplication.clock import Clock
from deduplication.journal.sqlite import Journal
from orchestrator.sessions import LISTED_MS, MOST_LISTED, SESSION_KEY, end_session, has_ended, shared_key


class Machine:
    """A journal with a clock that the test moves."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms
        self.journal = Journal(":memory:", Clock(lambda: self.now_ms, lambda: self.now_ms))

    def key(self) -> bytes:
        return shared_key(self.journal, SESSION_KEY)


def share_notes(*machines: Machine) -> None:
    """As the fleet does it: of two notes with one key the later one counts."""
    fleet: dict[str, tuple[int, str]] = {}
    for machine in machines:
        with machine.journal.reading() as step:
            for key, note in members.notes(step).items():
                fleet[key] = max(note, fleet.get(key, (0, "")))
    for machine in machines:
        with machine.journal.step() as step:
            for key, (at_ms, value) in fleet.items():
                members.put_note(step, key, value, at_ms)


def test_all_processes_of_a_machine_have_the_same_key(tmp_path: Path) -> None:
    one, other = (Journal(tmp_path / "journal.db") for _ in range(2))
    key = shared_key(one, SESSION_KEY)
    assert shared_key(other, SESSION_KEY) == shared_key(one, SESSION_KEY) == key
    assert len(key) == 32


def test_a_machine_that_joins_takes_the_key_of_the_fleet() -> None:
    first, joins = Machine(), Machine(1_800_000_060_000)
    key, other = first.key(), joins.key()
    assert key != other
    share_notes(joins, first)
    assert joins.key() == first.key() == key


def test_the_list_is_bounded_in_time_and_length() -> None:
    machine = Machine()
    end_session(machine.journal, "old")
    machine.now_ms += LISTED_MS
    for number in range(MOST_LISTED + 1):
        end_session(machine.journal, f"s{number}")
    assert not has_ended(machine.journal, "old")
    assert not has_ended(machine.journal, "s0"), "more than the list holds"
    assert has_ended(machine.journal, "s1")
    assert has_ended(machine.journal, f"s{MOST_LISTED}")
    with machine.journal.reading() as step:
        assert len(members.notes(step)) == 1
