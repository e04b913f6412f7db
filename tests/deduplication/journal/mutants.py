"""Breaks one rule of the protocol after the other; the tests must notice each. Arguments: numbers of rules."""

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


# By file, each rule with the text that keeps it and what is put in its place.
BROKEN: dict[str, dict[str, tuple[str, str]]] = {
    "commit.lua": {
        "2 a hold compares names": ("is_same and values[i] == value", "is_same"),
        "2 a hold compares marks": ("is_same and is_so == is_expected", "is_same"),
        "13 a new era is closed": ("if only_open and closed_ms > 0 then", "if false then"),
        "13 the run_id counts": ("if era_run ~= run then", "if not era_run then"),
        "18 what is due is handed out in the era that the taker knows": (
            "if its_era ~= '' and its_era ~= era then",
            "if false then",
        ),
        "18 hastening leaves alone what is lent": ("'owner') == '' then", "'owner') ~= 'x' then"),
        "31 a lock is free, or it is refused": (
            "call('SET', key, (string.gsub(first, '\\1', result)), unpack(write, 4))",
            "call('SET', key, (string.gsub(first, '\\1', '1')), unpack(write, 4))",
        ),
    },
    "registry.py": {
        "2 only its owner releases a hold": (
            "held = {entry.id: entry for _, entry in under if owner in {other.owner for other in entry.deliveries}}",
            "held = {entry.id: replace(entry, deliveries=()) for _, entry in under}",
        ),
        "2 a hold compares the entries that it was shown": ('self.value(f"e:{id_}")', "pass"),
        "9 what is published is that of the hold": ("            values.clear()\n", ""),
        "26 a late outcome frees no name that is held again": ("and is_held_again and", "and False and"),
        "17 put only what is absent": ("if waits and not taken_by and (is_there or payload is None):", "if False:"),
        "21 a reset keeps what is open": ("if not is_busy and not is_newer:", "if not is_newer:"),
        "22 an older entry is not published after a reset": (
            "if pointer.reset > entry.reset and labels[label].is_own:",
            "if False:",
        ),
        "21 a reset of a shared name drops no entry": ("> entry.reset and labels[label].is_own:", "> entry.reset:"),
        "25 an email whose entry is here explains its mark in Redis": (
            "not (entries or mine.entries or mine.ended)",
            "not (entries or mine.ended)",
        ),
        "15 a lapsed claim is not put back": ("if text else entry.without_claims()", "if text else entry"),
        "13 facts are accepted while closed": ("if known:", "if False:"),
    },
    "coordinator.py": {
        "2 a lost hold is released": ("self._orphans.append((claim.references, claim.owner))", "pass"),
        "3 the claim looks again": (
            "            if not isinstance(found, Take):\n                return found\n            take =",
            "            if not isinstance(found, Take):\n                found = held.take if held else Take()\n"
            "            take =",
        ),
        "3 the claim knows its era": ('if held and held.era != step.meta("era"):', "if False:"),
        "5 the note reads what has changed since the claim": (
            "            present = before or claimed.entry.without_claims()",
            "            present = claimed.entry",
        ),
        "6 stored is safe once Redis has it": (
            "Settled(entry, is_home or self.publish(entry.id, payload, claimed.view))",
            "Settled(entry, True)",
        ),
        "9 the outbox is of one era": ('if published.era != step.meta("era"):', "if False:"),
        "18 the taker looks in its journal": (
            "if any(other.status is DeliveryStatus.DELIVERED for other in made):",
            "if False:",
        ),
        "27 one that waits is judged again": (
            "return delivery.waits_for is None or self._may_pass(lent)",
            "return True",
        ),
        "3 no claim on a full disk": ("        self.journal.check_disk()\n", ""),
        "22 a claim that was reset decides nothing": (
            "before or claimed.entry.without_claims()",
            "before or claimed.entry",
        ),
        "10 a claim counts on its own machine": ("held.take.joined.without_claims()", "held.take.joined"),
        "22 a reset must be read": ("and held.entry.reset > known.reset:", "and False:"),
        "26 a name marked without Redis counts": (
            'is_stopped_here = held and found.stop and step.outbox(1, found.stop.original or "-")',
            "is_stopped_here = False",
        ),
        "28 a repeat uses its proof": ("if claim.proof and not self.use_proof(claim):", "if False:"),
    },
    "rules.py": {
        "5 a fact is written whoever brings it": ("not (is_fact or is_owner)", "not is_owner"),
        "5 a decision is its owner's": ("not (is_fact or is_owner)", "False"),
        "6 what Redis has not accepted blocks": ("return not delivery.is_accepted", "return False"),
        "10 a live claim is not replaced by stored": (
            "        return incoming.status is DeliveryStatus.DELIVERED\n    if _RANKS",
            "        return True\n    if _RANKS",
        ),
        "10 a delivery is not undone by older news": (
            "return _RANKS[incoming.status] > _RANKS[ours.status]",
            "return True",
        ),
        "17 put only where nobody else has it": (
            "if covers or any(rival and rival.is_live(now_ms) for rival in rivals):",
            "if False:",
        ),
        "23 fingerprints tell emails apart": (
            "if not conflicts(ours, theirs) or differs_by_tag(ours, theirs))",
            "if ours)",
        ),
        "23 delivered ones are compared for longest": (
            "key=lambda entry: entry.is_delivered_somewhere)",
            "key=lambda entry: not entry.is_delivered_somewhere)",
        ),
        "23 a claim is compared until it ends": (
            "if DeliveryStatus.CLAIMED not in entry.statuses",
            "if entry.statuses",
        ),
        "25 a mark stops no email that says something else": (
            "if not name.needs_agreement and not conflicts(ours, Fingerprint.parse(ended.fingerprint)):",
            "if not name.needs_agreement:",
        ),
        "25 a foreign mark stops": ("if state.is_foreign and not name.needs_agreement:", "if False:"),
        "24 each destination counts": (
            "        if any(_covers(delivery) for delivery in deliveries):",
            "        if candidates and any(_covers(d) for e in candidates for d in e.deliveries):",
        ),
        "26 a name is held with the own ones": (
            "others = [entry for entry in others if holds(entry, name, known.now_ms)]",
            "others = []",
        ),
        "2 returned ends its own hold alone": (
            "if delivery.status is DeliveryStatus.RETURNED and delivery.owner != before.owner:",
            "if False:",
        ),
        "26 a lapsed claim leaves no names": (
            "(*(entry.shared if has_names else ()), *take.shared)",
            "(*entry.shared, *take.shared)",
        ),
        "27 no entry waits for a name beside those it has": (
            "or (take.joined and _has(take.joined, stop.name, known.now_ms))",
            "or False",
        ),
        "28 a proof is good for one email": ('if known.proven.removeprefix(HELD) not in ("", claim.key):', "if False:"),
    },
    "sqlite.py": {
        "9 what has changed stays in the outbox": (
            "WHERE seq = ? AND unpublished = ?",
            "WHERE seq = ? AND unpublished + 1 > ?",
        ),
        "10 a leader that stopped is replaced": (
            'self.set_meta(task, f"{process} {self.steady_ms + length_ms}")',
            'self.set_meta(task, f"{process} {self.steady_ms << 1}")',
        ),
        "23 the same fingerprint is compared first": (
            "ORDER BY e.fingerprint = ? DESC,",
            "ORDER BY e.fingerprint = ? ASC,",
        ),
        "25 an email that met a foreign mark does not explain it": (
            "if before is None and entry.stop and entry.stop.name.is_own:",
            "if False:",
        ),
        "19 suppressed payloads are bounded": ("        if domain:\n", "        if False:\n"),
        "21 a reset passes no lapsed claim by": (
            "if entry.is_busy(self.steady_ms):",
            "if entry.is_open:",
        ),
        "28 every machine remembers a proof": ("if entry.proof and entry.settled_ms:", "if False:"),
    },
    "fleet.py": {
        "9 another process publishes what one has left": (
            "if oldest and (at_once or oldest == self._oldest_unpublished):",
            "if False:",
        ),
        "10 position and batch are one": (
            'if step.meta("era") != era or (step.meta("position") or "0") != position:',
            "if False:",
        ),
        "14 a new era is read from its beginning": ('step.set_meta("position", "0")', "pass"),
        "14 everything is unpublished in a new era": ('step.set_meta("restore", "first")', "pass"),
        "15 live claims are put back": ("self._registry.put_back(entry, owner, until_ms - steady_ms)", "pass"),
        "15 what others did is restored": ("            self._publish_again([entry for _, entry in rows])\n", ""),
        "11 a request is executed once": ("INSERT OR IGNORE INTO requests", "INSERT OR REPLACE INTO requests"),
    },
    "schema.sql": {
        "25 each email under a mark is kept": (
            "PRIMARY KEY (reference, seq, fingerprint)",
            "PRIMARY KEY (reference, seq)",
        ),
    },
    "../room.py": {
        "19 one destination cannot take all room": ("used.get(name, 0) + size <= max(0, 4 * free)", "free >= 0"),
        "19 memory is kept free for names": ("is_full = bool(maxmemory) and", "is_full = False and"),
        "19 payloads of dead letters leave first": ("if not drop_dead(registry):", "if True:"),
    },
}
MUTANTS = [Mutant(rule, file, *texts) for file, rules in BROKEN.items() for rule, texts in rules.items()]


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
