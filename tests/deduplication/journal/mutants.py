"""Breaks one rule of the protocol after the other; the tests must notice each. Arguments: numbers of rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
CORE = "deduplication/journal"
TESTS = ("tests/deduplication/journal", "tests/deduplication/test_locks.py", "tests/test_stranger.py")
APART = ("--ignore=tests/deduplication/journal/test_mutants.py",)  # it notices every mutant by its text


@dataclass(frozen=True)
class Mutant:
    """``rule``: what is broken, as docs/architecture.md numbers it. ``old`` is in ``file`` exactly once."""

    rule: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant("2 a hold compares names", "commit.lua", "is_same and values[i] == value", "is_same"),
    Mutant("2 a hold compares marks", "commit.lua", "is_same and is_so == is_expected", "is_same"),
    Mutant(
        "2 only its owner releases a hold",
        "registry.py",
        "held = {entry.id: entry for _, entry in under if any(each.owner == owner for each in entry.deliveries)}",
        "held = {entry.id: changed(entry, deliveries=()) for _, entry in under}",
    ),
    Mutant(
        "2 a lost hold is released", "coordinator.py", "self._orphans.append((claim.references, claim.owner))", "pass"
    ),
    Mutant(
        "3 the claim looks again",
        "coordinator.py",
        "            if not isinstance(found, Take):\n                return found\n            take =",
        "            if not isinstance(found, Take):\n                found = held.take if held else Take()\n"
        "            take =",
    ),
    Mutant("3 the claim knows its era", "coordinator.py", 'if held and held.era != step.meta("era"):', "if False:"),
    Mutant("5 a fact is written whoever brings it", "rules.py", "not (is_fact or is_owner)", "not is_owner"),
    Mutant("5 a decision is its owner's", "rules.py", "not (is_fact or is_owner)", "False"),
    Mutant(
        "5 the note reads what has changed since the claim",
        "coordinator.py",
        "expected: int | None = claimed.version",
        "expected: int | None = None",
    ),
    Mutant(
        "6 stored is safe once Redis has it",
        "coordinator.py",
        "Settled(entry, is_home or self.publish(entry.id, payload, claimed.view))",
        "Settled(entry, True)",
    ),
    Mutant("6 what Redis has not accepted blocks", "rules.py", "return not delivery.is_accepted", "return False"),
    Mutant(
        "9 what has changed stays in the outbox",
        "sqlite.py",
        "WHERE seq = ? AND unpublished = ?",
        "WHERE seq = ? AND unpublished + 1 > ?",
    ),
    Mutant("9 the outbox is of one era", "coordinator.py", 'if published.era != step.meta("era"):', "if False:"),
    Mutant(
        "9 another process publishes what one has left",
        "fleet.py",
        "if oldest and oldest == self._oldest_unpublished:",
        "if False:",
    ),
    Mutant(
        "10 a leader that stopped is replaced",
        "sqlite.py",
        'self.set_meta(task, f"{process} {self.steady_ms + length_ms}")',
        'self.set_meta(task, f"{process} {self.steady_ms << 1}")',
    ),
    Mutant(
        "10 a live claim is not replaced by stored",
        "rules.py",
        "        return incoming.status is DeliveryStatus.DELIVERED\n    if _RANKS",
        "        return True\n    if _RANKS",
    ),
    Mutant(
        "10 a delivery is not undone by older news",
        "rules.py",
        "return _RANKS[incoming.status] > _RANKS[ours.status]",
        "return True",
    ),
    Mutant(
        "10 position and batch are one",
        "fleet.py",
        'if step.meta("era") != era or (step.meta("position") or "0") != position:',
        "if False:",
    ),
    Mutant("13 a new era is closed", "commit.lua", "if only_open and closed_ms > 0 then", "if false then"),
    Mutant("13 the run_id counts", "commit.lua", "if era_run ~= run then", "if not era_run then"),
    Mutant("14 a new era is read from its beginning", "fleet.py", 'step.set_meta("position", "0")', "pass"),
    Mutant("14 everything is unpublished in a new era", "fleet.py", 'step.set_meta("restore", "first")', "pass"),
    Mutant("15 live claims are put back", "fleet.py", "self._registry.put_back(entry, owner, left_ms)", "pass"),
    Mutant(
        "15 what others did is restored",
        "fleet.py",
        "            self._publish_again([entry for _, entry in rows])\n",
        "",
    ),
    Mutant(
        "17 put only where nobody else has it",
        "rules.py",
        "if covers or blocks:",
        "if False:",
    ),
    Mutant(
        "17 put only what is absent",
        "registry.py",
        "if waits and not taken_by and (is_there or payload is None):",
        "if False:",
    ),
    Mutant(
        "18 the taker looks in its journal",
        "coordinator.py",
        "if any(each.status is DeliveryStatus.DELIVERED for each in made):",
        "if False:",
    ),
    Mutant("18 nothing is handed out while closed", "due.lua", "or answer[2] > 0 then", "then"),
    Mutant(
        "21 a reset keeps what is open",
        "registry.py",
        "if not is_open and not is_newer:",
        "if not is_newer:",
    ),
    Mutant(
        "22 an older entry is not published after a reset",
        "registry.py",
        "default=0) > entry.reset:",
        "default=0) > 1 << 62:",
    ),
    Mutant(
        "23 fingerprints tell emails apart",
        "rules.py",
        "if not conflicts(ours, theirs) or differs_by_tag(ours, theirs))",
        "if ours)",
    ),
    Mutant(
        "23 delivered ones are compared for longest",
        "rules.py",
        "key=lambda entry: entry.is_delivered_somewhere)",
        "key=lambda entry: not entry.is_delivered_somewhere)",
    ),
    Mutant("23 a claim is compared until it ends", "rules.py", "if DeliveryStatus.CLAIMED not in {each", "if {each"),
    Mutant(
        "23 the same fingerprint is compared first",
        "sqlite.py",
        "ORDER BY e.fingerprint = ? DESC,",
        "ORDER BY e.fingerprint = ? ASC,",
    ),
    Mutant(
        "25 a mark stops no email that says something else",
        "rules.py",
        "if not name.needs_agreement and not conflicts(ours, Fingerprint.parse(ended.fingerprint)):",
        "if not name.needs_agreement:",
    ),
    Mutant(
        "25 an email whose entry is here explains its mark in Redis",
        "registry.py",
        "not (entries or mine.entries or mine.ended)",
        "not (entries or mine.ended)",
    ),
    Mutant(
        "25 each email under a mark is kept",
        "schema.sql",
        "PRIMARY KEY (reference, seq, fingerprint)",
        "PRIMARY KEY (reference, seq)",
    ),
    Mutant("25 a foreign mark stops", "rules.py", "if state.is_foreign and not name.needs_agreement:", "if False:"),
    Mutant(
        "25 an email that met a foreign mark does not explain it",
        "sqlite.py",
        "if before is None and entry.stop and entry.stop.name.is_own:",
        "if False:",
    ),
    Mutant(
        "24 each destination counts",
        "rules.py",
        "        if any(_covers(each) for each in made):",
        "        if candidates and any(_covers(d) for e in candidates for d in e.deliveries):",
    ),
    Mutant(
        "26 a name is held with the own ones",
        "rules.py",
        "return Met(name, holder, is_held=True) if holder else None",
        "return None",
    ),
    Mutant(
        "27 one that waits is judged again",
        "coordinator.py",
        "return delivery.waits_for is None or self._may_pass(lent)",
        "return True",
    ),
    Mutant(
        "11 a request is executed once", "fleet.py", "INSERT OR IGNORE INTO requests", "INSERT OR REPLACE INTO requests"
    ),
    Mutant("3 no claim on a full disk", "coordinator.py", "        self.journal.disk.check()\n", ""),
    Mutant(
        "18 hastening leaves alone what is lent",
        "due.lua",
        "'owner') == '' and",
        "'owner') ~= 'x' and",
    ),
    Mutant(
        "19 one destination cannot take all room",
        "../room.py",
        "used.get(name, 0) + size <= max(0, 4 * free)",
        "free >= 0",
    ),
    Mutant("19 memory is kept free for names", "../room.py", "is_full = bool(limit) and", "is_full = False and"),
    Mutant(
        "19 payloads of dead letters leave first", "../room.py", "if is_last or not drop_dead(registry):", "if True:"
    ),
    Mutant("19 suppressed payloads are bounded", "sqlite.py", "        if domain:\n", "        if False:\n"),
    Mutant(
        "31 a lock is free, or it is refused",
        "commit.lua",
        "call('SET', key, (string.gsub(first, '\\1', fence)), unpack(write, 4))",
        "call('SET', key, (string.gsub(first, '\\1', '1')), unpack(write, 4))",
    ),
    Mutant(
        "2 returned ends its own hold alone",
        "rules.py",
        "if each.status is DeliveryStatus.RETURNED and each.owner != before.owner:",
        "if False:",
    ),
    Mutant(
        "15 a lapsed claim is not put back",
        "registry.py",
        "if text else entry.without_claims()",
        "if text else entry",
    ),
    Mutant(
        "13 facts are accepted while closed",
        "registry.py",
        "if known:",
        "if False:",
    ),
    Mutant(
        "21 a reset passes no lapsed claim by",
        "sqlite.py",
        "if any(each.status is DeliveryStatus.WAITING or each.is_live(self.steady_ms) for each in entry.deliveries):",
        "if entry.is_open:",
    ),
    Mutant("22 a reset must be read", "coordinator.py", "and held.entry.reset > known.reset:", "and False:"),
    Mutant(
        "26 a name marked without Redis counts",
        "coordinator.py",
        'is_stopped_here = held and found.stop and step.outbox(1, found.stop.original or "-")',
        "is_stopped_here = False",
    ),
    Mutant(
        "28 a proof is good for one email",
        "rules.py",
        'if known.proven.removeprefix(HELD) not in ("", claim.key):',
        "if False:",
    ),
    Mutant(
        "28 a repeat uses its proof", "coordinator.py", "if claim.proof and not self.use_proof(claim):", "if False:"
    ),
    Mutant("28 every machine remembers a proof", "sqlite.py", "if entry.proof and entry.settled_ms:", "if False:"),
)


def is_caught(mutant: Mutant, examples: int) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="mailonce-mutant-") as folder:
        copy = Path(folder)
        for part in ("deduplication", "orchestrator", "routes", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "wsgi.py"):
            shutil.copy(ROOT / part, copy / part)
        target = copy / CORE / mutant.file
        text = target.read_text()
        if text.count(mutant.old) != 1:
            return False, f"{mutant.old!r} is in {mutant.file} {text.count(mutant.old)} times"
        target.write_text(text.replace(mutant.old, mutant.new))
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *TESTS, *APART, "-q", "-x", "-n", "0", f"--examples={examples}"],
            cwd=copy,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(copy)},
            timeout=1800,
        )
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    return ran.returncode == 1, failed[0].partition("::")[2][:90] if failed else ran.stdout[-300:]


def main() -> int:
    wanted, examples = sys.argv[1:], 150
    survived = []
    for mutant in MUTANTS:
        if wanted and not any(mutant.rule.startswith(each) for each in wanted):
            continue
        caught, how = is_caught(mutant, examples)
        print(f"{'caught  ' if caught else 'SURVIVED'} {mutant.rule}: {how}", flush=True)
        if not caught:
            survived.append(mutant.rule)
    print(f"survived: {', '.join(survived) or 'none'}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
