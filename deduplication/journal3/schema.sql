-- The journal of one machine. ``data`` is an entry as entry.encode writes it; the columns beside it are what it is found by.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    machine TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    reset INTEGER NOT NULL,
    answer TEXT NOT NULL,
    gate TEXT NOT NULL,
    provider TEXT NOT NULL,
    version INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX entries_by_time ON entries (created_ms);

-- reference: the label of a name (rules.reference). until_ms: when the mark of a shared name ends.
CREATE TABLE names (
    reference TEXT NOT NULL,
    seq INTEGER NOT NULL,
    is_marked INTEGER NOT NULL,
    until_ms INTEGER,
    PRIMARY KEY (reference, seq)
) WITHOUT ROWID;

-- owner, lease_until_ms (of the clock that cannot be set), is_accepted and begins are known on this machine alone.
CREATE TABLE deliveries (
    seq INTEGER NOT NULL,
    destination TEXT NOT NULL,
    status TEXT NOT NULL,
    generation INTEGER NOT NULL,
    webhook_id TEXT NOT NULL,
    next_try_ms INTEGER,
    ended_ms INTEGER,
    waits INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    is_accepted INTEGER NOT NULL,
    begins INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (seq, destination)
) WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (destination, next_try_ms) WHERE status = 'waiting';
CREATE INDEX deliveries_dead ON deliveries (ended_ms) WHERE status = 'dead';
CREATE INDEX deliveries_claimed ON deliveries (seq) WHERE status = 'claimed';

CREATE TABLE payloads (seq INTEGER PRIMARY KEY, size INTEGER NOT NULL, content BLOB NOT NULL);

-- Names whose entries have ended, with the fingerprint of what they stood for.
CREATE TABLE marks (reference TEXT PRIMARY KEY, fingerprint TEXT, until_ms INTEGER) WITHOUT ROWID;
CREATE INDEX marks_by_end ON marks (until_ms) WHERE until_ms IS NOT NULL;

CREATE TABLE proofs (proof TEXT PRIMARY KEY, key TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE resets (reference TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE repeats (
    entry TEXT NOT NULL, machine TEXT NOT NULL, count INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    PRIMARY KEY (entry, machine)
) WITHOUT ROWID;

-- Small texts that all machines share, such as a paused destination: the latest counts.
CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID;

-- What Redis has not heard of yet: version is that of the entry when it was put here.
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, version INTEGER NOT NULL);
