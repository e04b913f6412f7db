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
    route TEXT NOT NULL,
    outcome TEXT NOT NULL,
    outcomes TEXT NOT NULL,
    version INTEGER NOT NULL,
    unpublished INTEGER NOT NULL, -- the version that is to be published, or 0
    data TEXT NOT NULL
);
-- Lists are read by time. The index has every column that they are filtered by, so that other rows are not read; what
-- is rare and often asked for has an index of its own, in which most emails never are.
CREATE INDEX entries_by_time ON entries (created_ms, outcome, gate, provider, route, outcomes);
CREATE INDEX entries_unpublished ON entries (seq) WHERE unpublished; -- the outbox
CREATE INDEX entries_stopped ON entries (gate, created_ms) WHERE gate <> '';
CREATE INDEX entries_unusual ON entries (outcome, created_ms) WHERE outcome NOT IN ('delivered', 'claimed');

-- For search, filled behind the requests (orchestrator/operations/search.py). Rows of the full-text table are numbered
-- by time: created_ms << 20 | (seq & 1048575). keys: email ids, senders, webhook-ids, and thread:...
CREATE VIRTUAL TABLE search USING fts5(sender, subject, seq UNINDEXED, tokenize = 'trigram');
INSERT INTO search (search, rank) VALUES ('automerge', 0); -- the filler merges, a little at a time
CREATE TABLE unsearched (place INTEGER PRIMARY KEY); -- rows of search whose entry is gone
CREATE TABLE keys (value TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (value, seq)) WITHOUT ROWID;
-- The number of the last entry is given again once that entry is gone: then it has to be searched through again.
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

-- What is known of names. reference: the label of a name (rules.references). seq: the entry that has the name; 0: a mark
-- that outlived its entry or that another program made; -1: the latest reset of the name, its number in until_ms.
-- until_ms: when a mark ends. fingerprint: of a mark, short, so there is one row for each email; '' of a shared name and
-- of a mark that another program or an import made. entry, created_ms: what is left of a mark's entry.
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

-- owner, lease_until_ms (of the clock that cannot be set), is_accepted and begins are known on this machine alone.
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
    is_accepted INTEGER NOT NULL,
    begins INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (seq, destination)
) WITHOUT ROWID;
-- Status is a column of these indexes so that deliveries are counted from the index alone, ten times as fast.
CREATE INDEX deliveries_due ON deliveries (destination, next_try_ms, status) WHERE status = 'waiting';
CREATE INDEX deliveries_waiting ON deliveries (next_try_ms, seq) WHERE status = 'waiting';
-- Each destination is found by one step in the index, however many deliveries wait for it.
CREATE VIEW waiting_destinations AS
    WITH RECURSIVE found (name) AS (
        SELECT min(destination) FROM deliveries WHERE status = 'waiting'
        UNION ALL
        SELECT (SELECT min(destination) FROM deliveries WHERE status = 'waiting' AND destination > found.name)
        FROM found WHERE found.name IS NOT NULL
    )
    SELECT name FROM found WHERE name IS NOT NULL;
CREATE INDEX deliveries_dead ON deliveries (ended_ms, status) WHERE status = 'dead';

-- ends_ms: when it is kept no longer, of what was delivered. domain: of the sender, of what was suppressed.
CREATE TABLE payloads (
    seq INTEGER PRIMARY KEY, size INTEGER NOT NULL, ends_ms INTEGER, domain TEXT NOT NULL, content BLOB NOT NULL
);
CREATE INDEX payloads_by_end ON payloads (ends_ms) WHERE ends_ms IS NOT NULL;
CREATE INDEX payloads_by_domain ON payloads (domain, seq, size) WHERE domain <> '';

-- Attachments and raw emails behind links (orchestrator/files.py), with their contents if these are small. until_ms: how
-- long it is kept; 0 if it is to be deleted. Only what is_stored is shared by emails with the same file.
CREATE TABLE files (
    key TEXT PRIMARY KEY, sha256 TEXT NOT NULL, size INTEGER NOT NULL, domain TEXT NOT NULL, until_ms INTEGER NOT NULL,
    is_stored INTEGER NOT NULL, content BLOB
);
CREATE UNIQUE INDEX files_by_content ON files (sha256) WHERE is_stored AND until_ms > 0;
CREATE INDEX files_by_end ON files (until_ms);
-- Files of each email; without a key, one that is missing, and why.
CREATE TABLE file_links (
    entry TEXT NOT NULL, sha256 TEXT NOT NULL, key TEXT, missing TEXT, PRIMARY KEY (entry, sha256)
) WITHOUT ROWID;
CREATE INDEX file_links_by_key ON file_links (key) WHERE key IS NOT NULL;
-- How many bytes they take, by sender domain and in all ('*').
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

-- Locks of scripts, with the value that they have in Redis; lease_until_ms as above.
CREATE TABLE locks (name TEXT PRIMARY KEY, value TEXT NOT NULL, lease_until_ms INTEGER NOT NULL) WITHOUT ROWID;

-- Small texts that all machines share, such as a paused destination: the latest counts.
CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID;

-- Counts of each machine for the figures: by minute (step_s 60), by hour (3600), and since it began (0, with start_s 0).
CREATE TABLE counts (
    step_s INTEGER NOT NULL,
    start_s INTEGER NOT NULL,
    machine TEXT NOT NULL,
    key TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (step_s, start_s, machine, key)
) WITHOUT ROWID;

-- Rates and circuit breakers (orchestrator/delivery/); times are of the clock that cannot be set, as lease_until_ms.
CREATE TABLE windows (key TEXT NOT NULL, ends_ms INTEGER NOT NULL); -- one row for each event that still counts
CREATE INDEX windows_by_key ON windows (key, ends_ms);
CREATE INDEX windows_by_end ON windows (ends_ms);
CREATE TABLE breakers (
    destination TEXT PRIMARY KEY, failures INTEGER NOT NULL, failed_ms INTEGER NOT NULL
) WITHOUT ROWID;
