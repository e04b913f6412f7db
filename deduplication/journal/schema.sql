-- The journal of one machine. ``data`` is an entry in the encoding of entry.py; the other columns are for finding it.
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
    route TEXT NOT NULL,
    outcome TEXT NOT NULL,
    outcomes TEXT NOT NULL,
    version INTEGER NOT NULL,
    unpublished INTEGER NOT NULL, -- the version to publish, or 0
    data TEXT NOT NULL
);
-- Lists are ordered by time. This index has every column that they are filtered by, so that no other rows are read.
-- Rare entries that are often listed have an index of their own, which most emails never enter.
CREATE INDEX entries_by_time ON entries (created_ms, outcome, gate, provider, route, outcomes);
CREATE INDEX entries_unpublished ON entries (seq) WHERE unpublished; -- the outbox
CREATE INDEX entries_stopped ON entries (gate, created_ms) WHERE gate <> '';
CREATE INDEX entries_unusual ON entries (outcome, created_ms) WHERE outcome NOT IN ('delivered', 'claimed');

-- For search, filled in the background (orchestrator/operations/search.py). Rows of the full-text table are numbered by
-- time: created_ms << 20 | (seq & 1048575). keys: email ids, senders, webhook-ids, and thread:...
CREATE VIRTUAL TABLE search USING fts5(sender, subject, seq UNINDEXED, tokenize = 'trigram');
INSERT INTO search (search, rank) VALUES ('automerge', 0); -- the background thread merges, a little at a time
CREATE TABLE unsearched (place INTEGER PRIMARY KEY); -- rows of search whose entry is gone
CREATE TABLE keys (value TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (value, seq)) WITHOUT ROWID;
-- SQLite reuses the number of the last entry once that is deleted; the new entry must then be indexed again.
CREATE TRIGGER entry_deleted AFTER DELETE ON entries BEGIN
    INSERT OR IGNORE INTO unsearched VALUES (OLD.created_ms << 20 | (OLD.seq & 1048575));
    DELETE FROM keys WHERE seq = OLD.seq AND value IN (
        SELECT json_extract(OLD.data, '$.about.item') UNION ALL SELECT json_extract(OLD.data, '$.about.sender')
        UNION ALL SELECT 'thread:' || json_extract(OLD.data, '$.about.thread')
        UNION ALL SELECT webhook_id FROM deliveries WHERE seq = OLD.seq
    );
    DELETE FROM file_links WHERE entry = OLD.id AND key IS NULL;
    UPDATE meta SET value = OLD.seq - 1 WHERE key = 'searched' AND value + 0 >= OLD.seq
        AND OLD.seq > (SELECT coalesce(max(seq), 0) FROM entries);
END;

-- What is known of names. reference: the label of a name (rules.references). seq: the entry that has the name; 0 for a
-- mark that outlived its entry or that another program made; -1 for the latest reset of the name, whose number is in
-- until_ms. until_ms: when a mark ends. fingerprint: the short one of a mark, so each email has a row; '' for shared
-- names and for marks by other programs or imports. entry, created_ms: of the entry that a mark belonged to.
CREATE TABLE names (
    reference TEXT NOT NULL,
    seq INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    is_marked INTEGER NOT NULL,
    until_ms INTEGER,
    entry TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (reference, seq, fingerprint)
) WITHOUT ROWID;
CREATE INDEX marks_by_end ON names (until_ms) WHERE seq = 0 AND until_ms IS NOT NULL;
CREATE INDEX resets_by_number ON names (until_ms) WHERE seq = -1;

-- owner and lease_until_ms (by the clock that cannot be set) are known on this machine only.
CREATE TABLE deliveries (
    seq INTEGER NOT NULL,
    destination TEXT NOT NULL,
    status TEXT NOT NULL,
    generation INTEGER NOT NULL,
    webhook_id TEXT NOT NULL,
    next_try_ms INTEGER,
    ended_ms INTEGER,
    owner TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    PRIMARY KEY (seq, destination)
) WITHOUT ROWID;
-- These indexes contain the status, so that deliveries are counted from the index alone, which is ten times faster.
CREATE INDEX deliveries_due ON deliveries (destination, next_try_ms, status) WHERE status = 'waiting';
CREATE INDEX deliveries_waiting ON deliveries (next_try_ms, seq) WHERE status = 'waiting';
-- Finds each destination by one step in the index, however many deliveries wait for it.
CREATE VIEW waiting_destinations AS
    WITH RECURSIVE found (name) AS (
        SELECT min(destination) FROM deliveries WHERE status = 'waiting'
        UNION ALL
        SELECT (SELECT min(destination) FROM deliveries WHERE status = 'waiting' AND destination > found.name)
        FROM found WHERE found.name IS NOT NULL
    )
    SELECT name FROM found WHERE name IS NOT NULL;
CREATE INDEX deliveries_dead ON deliveries (ended_ms, status) WHERE status = 'dead';

-- ends_ms: when the payload of a delivered email expires. domain: the sender's, of suppressed emails.
CREATE TABLE payloads (
    seq INTEGER PRIMARY KEY, size INTEGER NOT NULL, ends_ms INTEGER, domain TEXT NOT NULL, content BLOB NOT NULL
);
CREATE INDEX payloads_by_end ON payloads (ends_ms) WHERE ends_ms IS NOT NULL;
CREATE INDEX payloads_by_domain ON payloads (domain, seq, size) WHERE domain <> '';

-- Attachments and raw emails behind links (orchestrator/files.py), with their contents if these are small. until_ms:
-- when it expires; 0 if it must be deleted. Emails with the same file share it only if it is_stored.
CREATE TABLE files (
    key TEXT PRIMARY KEY, sha256 TEXT NOT NULL, size INTEGER NOT NULL, domain TEXT NOT NULL, until_ms INTEGER NOT NULL,
    is_stored INTEGER NOT NULL, content BLOB
);
CREATE UNIQUE INDEX files_by_content ON files (sha256) WHERE is_stored AND until_ms > 0;
CREATE INDEX files_by_end ON files (until_ms);
-- The files of each email; a file without a key is missing, and ``missing`` says why.
CREATE TABLE file_links (
    entry TEXT NOT NULL, sha256 TEXT NOT NULL, key TEXT, missing TEXT, PRIMARY KEY (entry, sha256)
) WITHOUT ROWID;
CREATE INDEX file_links_by_key ON file_links (key) WHERE key IS NOT NULL;
-- How many bytes files take, by sender domain and in total ('*').
CREATE TABLE file_room (domain TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER file_added AFTER INSERT ON files BEGIN
    INSERT INTO file_room VALUES (NEW.domain, NEW.size), ('*', NEW.size)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER file_deleted AFTER DELETE ON files BEGIN
    UPDATE file_room SET bytes = bytes - OLD.size WHERE domain IN (OLD.domain, '*');
    DELETE FROM file_room WHERE domain = OLD.domain AND bytes <= 0;
END;

CREATE TABLE proofs (proof TEXT PRIMARY KEY, key TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX proofs_by_end ON proofs (until_ms);
CREATE TABLE requests (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE repeats (
    entry TEXT NOT NULL, machine TEXT NOT NULL, count INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    PRIMARY KEY (entry, machine)
) WITHOUT ROWID;

-- Locks of scripts, with the same value as in Redis; lease_until_ms as above.
CREATE TABLE locks (name TEXT PRIMARY KEY, value TEXT NOT NULL, lease_until_ms INTEGER NOT NULL) WITHOUT ROWID;

-- Small texts that all machines share, such as a paused destination. The latest one counts.
CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID;

-- Counts of each machine for statistics: by minute (step_s 60), by hour (3600), and in total (0, with start_s 0).
CREATE TABLE counts (
    step_s INTEGER NOT NULL,
    start_s INTEGER NOT NULL,
    machine TEXT NOT NULL,
    key TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (step_s, start_s, machine, key)
) WITHOUT ROWID;

-- Rates and circuit breakers (orchestrator/delivery/). Times are by the clock that cannot be set, as lease_until_ms.
CREATE TABLE windows (key TEXT NOT NULL, ends_ms INTEGER NOT NULL); -- a row for each event that still counts
CREATE INDEX windows_by_key ON windows (key, ends_ms);
CREATE INDEX windows_by_end ON windows (ends_ms);
CREATE TABLE breakers (
    destination TEXT PRIMARY KEY, failures INTEGER NOT NULL, failed_ms INTEGER NOT NULL
) WITHOUT ROWID;
