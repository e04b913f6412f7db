-- Put in front of every other script: how a name is read from its keys and written to them.
--
-- ARGV[1]  JSON request {item, owner, fingerprint ("-" = unknown), lease_ms, pending_kept_ms, siblings, retries_left,
--          names: [{label, gate, own, needs_agreement, lists_siblings, keys..., rendering...}]}
--   keys, as indexes into KEYS:
--     detail    Hash, a field for each fingerprint: the JSON record. Ours alone.
--     decides   what an operator reads and other programs write: a Set (with `member`) or a String.
--               If it does not say done, the name is not done, whatever the detail says.
--     history   a Set that is written when done and never read (optional)
--   rendering:
--     member    the member in the Sets
--     done      the String's value when done
--     pending   the String's value while pending (optional: then the String shows nothing)
--     counts    true if the String shows the retries left while the name is free
--     leased    true if the keys end with the lease
--     kept_ms   how long it stays once done (absent = for ever)
-- KEYS[1] is the counter of fencing numbers, KEYS[2] the Hash that says which memory this is (id, opens_ms), KEYS[3]
-- the Stream of resets that the other servers follow. All times are milliseconds of this server's TIME.

local request = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function field_of(name)
  return name.own and (name.fingerprint or request.fingerprint) or '-'
end

local function is_done(name)
  if name.done then
    return redis.call('GET', KEYS[name.decides]) == name.done
  end
  return redis.call('SISMEMBER', KEYS[name.decides], name.member) == 1
end

-- Every record of the name by fingerprint; a mark made by another program stands under "-", and before a record of ours
-- there, unless the mark by itself says nothing.
local function read(name)
  local marked, detailed, records = is_done(name), false, {}
  local stored = redis.call('HGETALL', KEYS[name.detail])
  for i = 1, #stored, 2 do
    local record = cjson.decode(stored[i + 1])
    local is_over = record.expires_ms and record.expires_ms <= now_ms
    if not is_over and (record.state ~= 'done' or marked) then
      records[stored[i]] = record
    end
    detailed = detailed or record.state == 'done'
  end
  if marked and not detailed and not (name.needs_agreement and records['-']) then
    records['-'] = {state = 'done', owner = ''}
  end
  return records
end

-- What is unknown is "-"; without a dot it is older than the parts, and says what the text was.
local TEXT, FILES, FILE_NAMES, IDS, HEAD = 1, 2, 3, 6, 7
local function parts_of(fingerprint)
  if not fingerprint:find('.', 1, true) then return {fingerprint:sub(1, 24), '-', '-', '-', '-', '-', '-'} end
  local parts = {}
  for part in fingerprint:gmatch('[^.]+') do parts[#parts + 1] = part end
  return parts
end

-- Whether a record of this fingerprint stands for what is claimed: conflicts() and agree() of deduplication/fingerprint.py.
local function is_same_item(name, fingerprint)
  local ours, theirs = parts_of(field_of(name)), parts_of(fingerprint)
  local function known(part) return ours[part] ~= '-' and theirs[part] ~= '-' end
  if name.needs_agreement then return known(TEXT) and field_of(name) == fingerprint end
  for part = TEXT, HEAD do
    local is_asked = known(part) and part ~= IDS and not (part == FILE_NAMES and known(FILES))
    if is_asked and ours[part] ~= theirs[part] then return false end
  end
  return true
end

local function mine(name, records)
  local record = records[field_of(name)]
  if record and record.owner == request.owner then return record end
end

-- One key may stand for several fingerprints: it lives as long as the longest of them.
local function keep(key, kept_ms)
  if not kept_ms then
    redis.call('PERSIST', key)
  elseif redis.call('PTTL', key) < kept_ms then
    redis.call('PEXPIRE', key, kept_ms)
  end
end

local function save_detail(name, record, kept_ms)
  local key = KEYS[name.detail]
  record.expires_ms = kept_ms and now_ms + kept_ms or nil
  local is_new = redis.call('EXISTS', key) == 0
  redis.call('HSET', key, field_of(name), cjson.encode(record))
  if is_new or redis.call('PTTL', key) ~= -1 then keep(key, kept_ms) end
end

local function show(name, value, kept_ms)
  local key = KEYS[name.decides]
  if kept_ms then
    redis.call('SET', key, value, 'PX', kept_ms)
  else
    redis.call('SET', key, value)
  end
end

local function add_member(key, name)
  local is_new = redis.call('EXISTS', key) == 0
  redis.call('SADD', key, name.member)
  if is_new or redis.call('PTTL', key) ~= -1 then keep(key, name.kept_ms) end
end

local function save_done(name, record)
  record.state, record.lease_until_ms = 'done', nil
  save_detail(name, record, name.kept_ms)
  if name.done then
    show(name, name.done, name.kept_ms)
  else
    add_member(KEYS[name.decides], name)
  end
  if name.history then add_member(KEYS[name.history], name) end
end

-- A String that says done for another fingerprint goes on saying so.
local function show_undone(name, value, kept_ms)
  if not name.done or is_done(name) then return end
  if value then
    show(name, value, kept_ms)
  else
    redis.call('DEL', KEYS[name.decides])
  end
end

local function save_pending(name, record, lease_ms)
  record.state, record.lease_until_ms = 'pending', now_ms + lease_ms
  local kept_ms = name.leased and lease_ms or request.pending_kept_ms
  save_detail(name, record, kept_ms)
  if name.pending then show_undone(name, name.pending, kept_ms) end
end

-- A free name is remembered only for the retries it has left.
local function save_free(name, record)
  record.state, record.owner, record.lease_until_ms = 'free', '', nil
  if name.own and record.retries_left then
    save_detail(name, record, request.pending_kept_ms)
  else
    redis.call('HDEL', KEYS[name.detail], field_of(name))
  end
  if name.pending then
    local shown = name.counts and record.retries_left and tostring(record.retries_left) or nil
    show_undone(name, shown, request.pending_kept_ms)
  end
end

local function fresh(name)
  return {
    owner = request.owner,
    item = request.item,
    first_seen_ms = now_ms,
    siblings = name.lists_siblings and request.siblings or nil,
  }
end
