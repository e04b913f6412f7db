"""Judges the fleet, one process at a time for all of them; tells once when an alarm begins and once when it ends."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from orchestrator.delivery.webhook import DeliveryFailed, Destination
from orchestrator.operations.alerts import Alarm, AlertCondition, Board, Episode, Facts, Phase, diagnose, read_board

log = logging.getLogger(__name__)

EVERY_S = 5.0
LEASE_MS = 30_000
WITHIN_S = 8.0  # for one webhook
BOARD, JUDGE = "alerts", "judge of alerts"


@dataclass(frozen=True)
class Findings:
    """Who judges until when, and what it found: the words of what is wrong now, alarm or not yet.

    ``oldest_ms``: for each destination, since when the oldest delivery waits. ``workers`` None: there is no queue.
    """

    by: str = ""
    until_ms: int = 0
    wrong: Mapping[str, str] = field(default_factory=dict)
    oldest_ms: Mapping[str, int] = field(default_factory=dict)
    workers: int | None = None

    def is_valid(self, now_ms: int) -> bool:
        """Not one that a clock, set back since, would let judge for ever."""
        return now_ms < self.until_ms <= now_ms + 2 * LEASE_MS

    def written(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class Alerting:
    """``tell`` None: alarms are only shown. ``after_ms``: how long something stays so until an alarm begins or ends."""

    tell: Destination | None = None
    after_ms: int = 60_000
    off: frozenset[AlertCondition] = frozenset()


class AlertWatch:
    """A thread of every process. The others look who judges, and take over when that one is silent.

    What is found stands in the journal, so it survives restarts; on two sides it goes on here by what this machine has
    seen there, and both are merged afterwards.
    """

    def __init__(
        self,
        journal: Journal,
        read_facts: Callable[[], Facts],
        how: Alerting,
        also: Sequence[Callable[[], None]] = (),
    ) -> None:
        """``also``: what else is done behind the requests, each time."""
        self._journal = journal
        self._read_facts = read_facts
        self._how = how
        self._also = also
        self._id = secrets.token_hex(6)
        self._board = Board()
        self._findings: Findings | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    @property
    def findings(self) -> Findings | None:
        """As this process saw it last; None: nobody has judged yet."""
        return self._findings

    def alarms(self) -> list[Alarm]:
        """Those that are on, in the words of now."""
        wrong = self._findings.wrong if self._findings else {}
        return [replace(each, text=wrong.get(each.key, each.text)) for each in self._board.alarms]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Another process need not wait until the lease is over."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._try_to(self._give_up_judging)

    def look(self) -> None:
        """One round: judges, or sees what another has judged."""
        now_ms, written = self._journal.now_ms(), self._journal.memo(JUDGE)
        before = _read_findings(written)
        if before and before.by != self._id and before.is_valid(now_ms):
            self._findings, self._board = before, self._read_board()[1]
            return
        taken = replace(before or Findings(), by=self._id, until_ms=now_ms + LEASE_MS)
        if self._journal.change_memo(JUDGE, written, taken.written()):  # otherwise another was faster
            self._judge(taken)

    def _judge(self, taken: Findings) -> None:
        facts, now_ms = self._read_facts(), self._journal.now_ms()
        diagnosis = diagnose(facts, self._how.off)
        found = Findings(
            by=self._id,
            until_ms=now_ms + LEASE_MS,
            wrong=diagnosis.wrong,
            oldest_ms={name: now_ms - age_s * 1000 for name, age_s in (facts.oldest_s or {}).items()},
            workers=facts.workers,
        )
        if not self._journal.change_memo(JUDGE, taken.written(), found.written()):
            return  # it took too long, and another judges
        self._findings = found
        written, board = self._read_board()
        after = board.after(diagnosis, now_ms, self._how.after_ms)
        if not after.fleet:
            after = replace(after, fleet=secrets.token_hex(8))
        if self._change_board(written, after):
            _log_changes(board, after)
            self._tell_what_is_due(found.until_ms)

    def _tell_what_is_due(self, until_ms: int) -> None:
        """A try is noted before it is made, so that no process that dies with it makes a loop of it."""
        for key in list(self._board.episodes):
            now_ms = self._journal.now_ms()
            episode = self._board.episodes[key]
            phase = episode.next_notice(now_ms)
            if phase is None or now_ms + WITHIN_S * 1000 > until_ms:
                continue
            notice = episode.notice(phase)
            noted = notice.after_try(now_ms) if self._how.tell else replace(notice, is_over=True)
            if not self._change_episode(key, episode.with_notice(phase, noted)):
                return
            if self._how.tell and self._is_told(self._how.tell, key, phase):
                self._change_episode(key, episode.with_notice(phase, replace(noted, is_over=True)))

    def _is_told(self, tell: Destination, key: str, phase: Phase) -> bool:
        """True too where it makes no sense to say it again."""
        try:
            tell.deliver(self._board.webhook(key, phase), WITHIN_S)
        except DeliveryFailed as error:
            log.warning("alarm %s %s: not told: %s", key, phase, error)
            return error.permanent
        return True

    def _change_episode(self, key: str, episode: Episode) -> bool:
        written, board = self._read_board()
        return self._change_board(written, board.with_episode(key, episode))

    def _read_board(self) -> tuple[str | None, Board]:
        """What stands there, and what that comes to with what this machine knows."""
        written = self._journal.memo(BOARD)
        board = read_board(written)
        if isinstance(self._journal, FailoverJournal) and self._journal.standing.side is Side.REDIS:
            copy = self._journal.local.memo(BOARD)
            board = board.merged(read_board(copy))
            if board.written() != copy:
                self._journal.local.note(BOARD, board.written())
        return written, board

    def _change_board(self, before: str | None, board: Board) -> bool:
        after = board.written()
        if after != before and not self._journal.change_memo(BOARD, before, after):
            return False
        self._board = board
        return True

    def _give_up_judging(self) -> None:
        written = self._journal.memo(JUDGE)
        found = _read_findings(written)
        if found and found.by == self._id:
            self._journal.change_memo(JUDGE, written, replace(found, until_ms=0).written())

    def _run(self) -> None:
        while True:
            for each in (self.look, *self._also):
                self._try_to(each)
            if self._stop.wait(EVERY_S):
                return

    def _try_to(self, do: Callable[[], None]) -> None:
        try:
            do()
        except DeduplicationError as error:
            log.info("alarms: looked again later: %s", error)
        except Exception:
            log.exception("alarms: looked again later")


def _log_changes(before: Board, after: Board) -> None:
    was_on = {each.key for each in before.alarms}
    now_on = {each.key: each for each in after.alarms}
    for key in now_on.keys() - was_on:
        log.error("ALARM %s: %s", key, now_on[key].text)
    for key in was_on - now_on.keys():
        log.warning("ALARM %s is over", key)


def _read_findings(written: str | None) -> Findings | None:
    known: dict[str, Any] | None = json.loads(written) if written else None
    return Findings(**known) if known else None
