-- Put in front of every other script: how an entry and its names are read from Redis and written to it.
--
-- ARGV[1]  prefix of all keys (a Cluster needs a {hash tag} in it: entries are found by what their names refer to)
-- ARGV[2]  MessagePack {machine, seen, group_ttl, entry_ms, dead_ms}: who asks and the last number it got, whether a
--          String decides about subject groups, and how long entries and dead letters are kept
-- ARGV[3]  MessagePack, what the script itself takes
-- Keys, after the prefix:
--   entry:{id}        String, MessagePack: the entry as a list (see the positions below); None is false
--   payload:{id}      String, what is kept to be sent
--   n:{digest}        String "id@created_ms ...": the entries that have or hold a name; several only where texts differ
--   followers:{id}    List of entries stopped by a name that this one holds while it waits for its next try
--   due:{destination} ZSET, entry -> next try          dead:{destination} ZSET, entry -> when it died
--   destinations      Set of those that ever had something due or dead
--   entries:{hour}    List of the entries that came in that hour
--   fence             the counter of all numbers
--   machines          Hash, machine -> the last number it was given; and until when a Redis that lost its memory is closed
--   forgotten:{digest} String, when a name was last reset: what a machine took before that is not brought back
--   and the marks of each kind of name, which an operator reads and other programs write (see spell)
-- All times are milliseconds of this server's TIME.

local ID, STATE, OWNER, FENCE, LEASE, CREATED, PRINT, OWN, SHARED, DELIVERIES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local RETRIES, ANSWER, SETTLED, STOP, RELEASED, REPEATS, REPEATED, REPEATED_BY, TRIAL, ABOUT =
  11, 12, 13, 14, 15, 16, 17, 18, 19, 20
local DESTINATION, WEBHOOK, STATUS, GENERATION, TRIES, BEGINS, NEXT_TRY, DELIVERED = 1, 2, 3, 4, 5, 6, 7, 8
local D_OWNER, D_LEASE, D_FENCE, RECEIVER, REASON, CONTENT, AWAITS, ATTEMPTS = 9, 10, 11, 12, 13, 14, 15, 16
local KIND, SCOPE, VALUE, KEPT = 1, 2, 3, 4
local CLOSED_UNTIL = 'closed until'
local HOUR_MS, CONTENT_ASKED_AGAIN_MS = 3600000, 5000

local call = redis.call
local prefix = ARGV[1]
local machine, seen, group_ttl, entry_ms, dead_ms = unpack(cmsgpack.unpack(ARGV[2]))
local request = cmsgpack.unpack(ARGV[3])
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local GATES = {
  email_id = 'identity', post = 'identity', subject_group = 'subject_group', media = 'media', content = 'content',
  lock = 'lock',
}

local function is_own(name) return GATES[name[KIND]] == 'identity' end

local function label_of(name) return name[KIND] .. ':' .. name[SCOPE] .. ':' .. name[VALUE] end

local function digest_of(name) return string.sub(redis.sha1hex(label_of(name)), 1, 20) end

local function pointer(name) return prefix .. 'n:' .. digest_of(name) end

local function tombstone(name) return prefix .. 'forgotten:' .. digest_of(name) end

-- Why nothing can be decided here now: this Redis knows less than the machine was told by it, or it did, and is closed
-- until the machines have told it what they know.
local function refusal()
  local given, closed_until = unpack(call('HMGET', prefix .. 'machines', machine, CLOSED_UNTIL))
  if seen > tonumber(given or 0) then return {'lost_memory'} end
  if closed_until and tonumber(closed_until) > now then return {'closed', tonumber(closed_until) - now} end
end

-- Every step takes a number, settlements too: a Redis that lost one of them is noticed by whoever asks next.
local function next_number()
  local number = call('INCR', prefix .. 'fence')
  call('HSET', prefix .. 'machines', machine, number)
  return number
end

local function read_entry(id)
  local stored = call('GET', prefix .. 'entry:' .. id)
  return stored and cmsgpack.unpack(stored)
end

-- Where a name's mark stands: {key, member (in a Set) or false, the value that says done, the one that says pending}
local function spell(name)
  local kind, scope, value = name[KIND], name[SCOPE], name[VALUE]
  if kind == 'email_id' then return {prefix .. 'processed_ids:' .. scope, value} end
  if kind == 'post' then return {prefix .. 'post:' .. value, false, '0', 'pending'} end
  if kind == 'media' then return {prefix .. 'media:' .. value, false, '1', 'pending'} end
  if kind == 'content' then return {prefix .. 'dedup:' .. scope .. ':' .. value, false, '1'} end
  if kind == 'lock' then return {prefix .. 'lock:' .. scope .. ':' .. value, false, 'released', 'held'} end
  local member = scope .. ':' .. value
  if group_ttl then return {prefix .. 'ttl:subject_groups:' .. member, false, '1', false, member} end
  return {prefix .. 'subject_groups:' .. scope, member}
end

-- What was read once in a script is not read again.
local known_marks, known_refs = {}, {}

local function is_marked(name)
  local label = label_of(name)
  if known_marks[label] == nil then
    local key, member, done = unpack(spell(name))
    if member then
      known_marks[label] = call('SISMEMBER', key, member) == 1
    else
      known_marks[label] = call('GET', key) == done
    end
  end
  return known_marks[label]
end

-- {{id, created_ms}...} of the entries under a name
local function refs_of(name)
  local label = label_of(name)
  if known_refs[label] then return known_refs[label] end
  local refs = {}
  known_refs[label] = refs
  for id, created in string.gmatch(call('GET', pointer(name)) or '', '(%S+)@(%d+)') do
    refs[#refs + 1] = {id, tonumber(created)}
  end
  return refs
end

local function write_refs(name, refs, kept_ms)
  known_refs[label_of(name)] = refs
  if #refs == 0 then
    call('DEL', pointer(name))
    return
  end
  local words = {}
  for i, ref in ipairs(refs) do words[i] = ref[1] .. '@' .. string.format('%.0f', ref[2]) end
  local text = table.concat(words, ' ')
  if kept_ms then call('SET', pointer(name), text, 'PX', kept_ms) else call('SET', pointer(name), text) end
end

-- A Set's members go together, so it lives as long as the longest of them.
local function add_member(key, member, kept_ms)
  local added = call('SADD', key, member)
  local left_ms = call('PTTL', key)
  if not kept_ms then
    if left_ms >= 0 then call('PERSIST', key) end
  elseif left_ms >= 0 then
    if left_ms < kept_ms then call('PEXPIRE', key, kept_ms) end
  elseif added == 1 and call('SCARD', key) == 1 then
    call('PEXPIRE', key, kept_ms)
  end
end

local function mark(name)
  known_marks[label_of(name)] = true
  local key, member, done, _, history = unpack(spell(name))
  local kept_ms = name[KEPT]
  if member then
    add_member(key, member, kept_ms)
    return
  end
  if kept_ms then call('SET', key, done, 'PX', kept_ms) else call('SET', key, done) end
  if history then add_member(prefix .. 'subject_groups:' .. name[SCOPE], history, kept_ms) end
end

-- What an operator sees of a name that is not done: pending, the retries left, or nothing. A mark stays.
local function show(name, value, kept_ms)
  local key, member, _, pending = unpack(spell(name))
  if member or not pending or is_marked(name) then return end
  if value == 'pending' then
    call('SET', key, pending, 'PX', kept_ms)
  elseif value and name[KIND] == 'post' then
    call('SET', key, value, 'PX', kept_ms)
  else
    call('DEL', key)
  end
end

-- What an entry is

local function is_open(delivery) return delivery[STATUS] == 'waiting' or delivery[STATUS] == 'delivering' end

local function is_held(entry) return entry[STATE] == 'pending' and entry[LEASE] > now end

local function has_open_deliveries(entry)
  if entry[STATE] ~= 'done' then return false end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if is_open(delivery) then return true end
  end
  return false
end

local function is_delivered(delivery, entry) return delivery[STATUS] == 'delivered' and not entry[TRIAL] end

-- A claim without destinations is a script's: what it settles is what it published.
local function is_delivered_somewhere(entry)
  if entry[TRIAL] then return false end
  if #entry[DELIVERIES] == 0 then return entry[STATE] == 'done' and entry[RETRIES] ~= 0 and not entry[STOP] end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if is_delivered(delivery, entry) then return true end
  end
  return false
end

local function delivery_to(entry, destination)
  for i, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[DESTINATION] == destination then return delivery, i end
  end
end

-- Every name of an entry by its label: own, shared, and its words at each destination
local function names_of(entry)
  local names = {}
  for _, name in ipairs(entry[OWN]) do names[label_of(name)] = name end
  for _, name in ipairs(entry[SHARED]) do names[label_of(name)] = name end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[CONTENT] then names[label_of(delivery[CONTENT])] = delivery[CONTENT] end
  end
  return names
end

-- What an entry does to a name of its own: "marked", "held" or "given back" (verdict.py, standing)
local function standing(entry, name, label)
  if name[KIND] == 'lock' then return entry[STATE] == 'pending' and 'held' or 'given back' end
  if is_own(name) then return entry[STATE] == 'done' and not entry[TRIAL] and 'marked' or 'held' end
  local is_content = name[KIND] == 'content'
  if #entry[DELIVERIES] == 0 then
    if is_delivered_somewhere(entry) then return 'marked' end
    return entry[STATE] == 'pending' and 'held' or 'given back'
  end
  local any_open = false
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if not is_content or (delivery[CONTENT] and label_of(delivery[CONTENT]) == label) then
      if is_delivered(delivery, entry) then return 'marked' end
      any_open = any_open or (is_open(delivery) and not (is_content and delivery[AWAITS]))
    end
  end
  return entry[STATE] ~= 'free' and any_open and 'held' or 'given back'
end

-- A lock is an entry too, but not an item that anybody sent: it is not listed, and not kept when it is over.
local function is_lock(entry) return entry[OWN][1] and entry[OWN][1][KIND] == 'lock' end

-- Until when an entry is kept; nil while something is still to be delivered
local function kept_until(entry)
  if has_open_deliveries(entry) then return nil end
  if is_lock(entry) then return now end
  local kept_ms = entry_ms
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[STATUS] == 'dead' then kept_ms = dead_ms end
  end
  return (entry[SETTLED] or entry[CREATED]) + kept_ms
end

-- How long from now on, an hour at least
local function kept_for(entry)
  local until_ms = kept_until(entry)
  return until_ms and math.max(HOUR_MS, until_ms - now)
end

-- What refers to an entry is written again only if its end moves: not for the seconds that a delivery takes
local function is_kept_otherwise(entry, before)
  local one, other = kept_until(entry), kept_until(before)
  if one and other then return math.abs(one - other) > HOUR_MS end
  return one ~= other
end

-- Where texts differ, a name has several entries, and refers to each as long as that is kept.
local function write_all_refs(name, refs)
  local kept_ms = 0
  for _, ref in ipairs(refs) do
    local entry = read_entry(ref[1])
    local own_ms = 0
    if entry then own_ms = kept_for(entry) end
    kept_ms = kept_ms and own_ms and math.max(kept_ms, own_ms)
  end
  if kept_ms == 0 then refs = {} end
  write_refs(name, refs, kept_ms)
end

local function refer(name, entry, kept_ms)
  local refs, others = is_own(name) and refs_of(name) or {}, {}
  for _, ref in ipairs(refs) do
    if ref[1] ~= entry[ID] then others[#others + 1] = ref end
  end
  others[#others + 1] = {entry[ID], entry[CREATED]}
  if #others == 1 then write_refs(name, others, kept_ms) else write_all_refs(name, others) end
end

local function holds(entry, name)
  local ref = refs_of(name)[1]
  return ref and ref[1] == entry[ID]
end

local function unrefer(name, id)
  local left = {}
  local refs = refs_of(name)
  for _, ref in ipairs(refs) do
    if ref[1] ~= id then left[#left + 1] = ref end
  end
  if #left < #refs then write_all_refs(name, left) end
end

local function index_deliveries(entry, before)
  for _, delivery in ipairs(entry[DELIVERIES]) do
    local was = before and delivery_to(before, delivery[DESTINATION])
    local was_due = was and before[STATE] == 'done' and is_open(was) and was[NEXT_TRY]
    local due = entry[STATE] == 'done' and is_open(delivery) and delivery[NEXT_TRY]
    if (due and not was_due) or delivery[STATUS] == 'dead' then
      call('SADD', prefix .. 'destinations', delivery[DESTINATION])
    end
    if due and due ~= was_due then
      call('ZADD', prefix .. 'due:' .. delivery[DESTINATION], due, entry[ID])
    elseif was_due and not due then
      call('ZREM', prefix .. 'due:' .. delivery[DESTINATION], entry[ID])
    end
    local was_dead, dead = was and was[STATUS] == 'dead', delivery[STATUS] == 'dead'
    if dead and not was_dead then
      local index = prefix .. 'dead:' .. delivery[DESTINATION]
      call('ZADD', index, now, entry[ID])
      call('ZREMRANGEBYSCORE', index, '-inf', now - dead_ms)
    elseif was_dead and not dead then
      call('ZREM', prefix .. 'dead:' .. delivery[DESTINATION], entry[ID])
    end
  end
end

-- The entry, and what its change means for each of its names (local.py, _save)
local function save(entry, before)
  local kept_ms = kept_for(entry)
  local key = prefix .. 'entry:' .. entry[ID]
  if kept_ms then call('SET', key, cmsgpack.pack(entry), 'PX', kept_ms) else call('SET', key, cmsgpack.pack(entry)) end
  local names, past = names_of(entry), before and names_of(before) or {}
  local is_end_moved = before and is_kept_otherwise(entry, before)
  local shown = entry[STATE] == 'pending' and 'pending' or (entry[RETRIES] and tostring(entry[RETRIES]) or nil)
  for label, name in pairs(names) do
    local was, is = past[label] and standing(before, name, label), standing(entry, name, label)
    if is == 'given back' then
      if was ~= is then
        unrefer(name, entry[ID])
        show(name, nil)
      end
    elseif is_own(name) then
      if not was or is_end_moved then refer(name, entry, kept_ms and kept_ms + 2 * HOUR_MS) end
    elseif was ~= is or (is == 'held' and is_end_moved and holds(entry, name)) then
      refer(name, entry, is == 'marked' and name[KEPT] or kept_ms)
    end
    if is == 'marked' and was ~= is then mark(name) end
    if is == 'held' and (was ~= is or before[STATE] ~= entry[STATE]) then
      show(name, shown, name[KIND] == 'lock' and math.max(1, entry[LEASE] - now) or entry_ms)
    end
  end
  for label, name in pairs(past) do
    if not names[label] then
      unrefer(name, entry[ID])
      show(name, nil)
    end
  end
  index_deliveries(entry, before)
  if not before and not is_lock(entry) then
    local hour = prefix .. 'entries:' .. math.floor(now / HOUR_MS)
    if call('RPUSH', hour, entry[ID]) == 1 then call('PEXPIRE', hour, entry_ms + HOUR_MS) end
  end
end

-- The last open delivery has ended: dead everywhere, the oldest follower goes out in its place (verdict.py, released)
local function end_if_over(entry)
  if entry[STATE] ~= 'done' or entry[STOP] and not entry[RELEASED] then return end
  if has_open_deliveries(entry) then return end
  local list = prefix .. 'followers:' .. entry[ID]
  local ids = call('LRANGE', list, 0, -1)
  if #ids == 0 then return end
  call('DEL', list)
  if is_delivered_somewhere(entry) then return end
  local first
  for _, id in ipairs(ids) do
    local follower = read_entry(id)
    if follower and follower[STOP] and not follower[RELEASED] then
      local before = cmsgpack.unpack(cmsgpack.pack(follower))
      if not first then
        first = follower
        for _, delivery in ipairs(follower[DELIVERIES]) do
          if delivery[STATUS] == 'skipped' then
            delivery[STATUS], delivery[NEXT_TRY], delivery[REASON] = 'waiting', now, 'released'
          end
        end
        follower[SHARED] = GATES[follower[STOP][1][KIND]] ~= 'content' and {follower[STOP][1]} or {}
        follower[RELEASED] = now
      else
        follower[STOP][2], follower[STOP][3] = first[ID], first[CREATED]
        call('RPUSH', prefix .. 'followers:' .. first[ID], id)
      end
      save(follower, before)
    end
  end
end
