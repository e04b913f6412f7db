-- Put in front of every other script: how an entry and its names are read from Redis and written to it.
--
-- ARGV[1]  prefix of all keys (a Cluster needs a {hash tag} in it: entries are found by what their names refer to)
-- ARGV[2]  MessagePack {machine, seen, group_ttl, entry_ms, dead_ms, delivered_payload_ms, most_payload_bytes}: who asks
--          and the last number it got, whether a String decides about subject groups, how long entries, dead letters and
--          the payloads of what was delivered are kept, and how much all payloads together may be
-- ARGV[3]  MessagePack, what the script itself takes
-- ARGV[4]  a payload, "" for none; ARGV[5] "1": it was sent ahead, in pieces
-- Keys, after the prefix:
--   entry:{id}        String, MessagePack: the entry as a list (see the positions below); None is false. Where machines
--                     told of repeats that they counted alone, behind it {machine -> how many of these are counted here}
--   upload:{id}       String, a large payload that is being sent ahead, in pieces
--   payload:{id}      String, what is kept to be sent: as long as the entry, until all of it is delivered
--   payload_bytes     how much all payloads and uploads are, together; changed with each of them
--   payload_ends      ZSET, "payload:{id} {bytes}" or "upload:{id} {bytes}" -> when that key ends by itself, so that what it
--                     counted for can be taken off then (purge.lua)
--   n:{digest}        String "id ...": the entries that have an own name; several only where texts differ, up to 64. Of a shared
--                     name "id@created_ms": it tells the original for longer than that is kept
--   followers:{id}    List of entries stopped by a name that this one holds while it waits for its next try
--   due:{destination} ZSET, entry -> next try          dead:{destination} ZSET, entry -> when it died
--   due_at:{machine}:{destination}  ZSET, the same of those whose payload that machine alone has, and delivers
--   payload_machines  Set of machines that ever had such
--   destinations      Set of those that ever had something due or dead
--   destination_states  Hash, destination -> MessagePack: whether it is paused, and when it was last well (states.lua)
--   memos             Hash, name -> text of who keeps something beside the entries (memo.lua)
--   locks             ZSET, entry -> when the lock of a script ends
--   entries:{hour}    List of the entries that came in that hour
--   late              ZSET, "entry created_ms" -> until when an entry is kept that the list of its hour ends before
--   fence             the counter of all numbers
--   machine:<name>    the last number that machine was given
--   shared_key        a key that all who share the journal have
--   closed_until      until when a Redis that lost its memory is closed
--   forgotten         ZSET, label of a name -> when it was last reset: what a machine took before that is not brought back
--   generations       ZSET, entry -> when it was taken up again or given back after its end
--                     Both as long as a machine may know better; each machine reads what is new there
--   and the marks of each kind of name, which an operator reads and other programs write (see spell)
-- All times are milliseconds of this server's TIME.

local ID, STATE, OWNER, FENCE, LEASE, CREATED, PRINT, OWN, SHARED, DELIVERIES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local RETRIES, ANSWER, SETTLED, STOP, RELEASED, REPEATS, REPEATED, REPEATED_BY, TRIAL, ABOUT, E_GENERATION =
  11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21
local PAYLOAD_BYTES, PAYLOAD_MACHINE = 22, 23
local DESTINATION, WEBHOOK, STATUS, GENERATION, TRIES, BEGINS, NEXT_TRY, DELIVERED = 1, 2, 3, 4, 5, 6, 7, 8
local D_OWNER, D_LEASE, D_FENCE, RECEIVER, REASON, CONTENT, AWAITS, ATTEMPTS = 9, 10, 11, 12, 13, 14, 15, 16
local MISSING, SERVER = 17, 18
local KIND, SCOPE, VALUE, KEPT = 1, 2, 3, 4
local HOUR_MS, CONTENT_ASKED_AGAIN_MS = 3600000, 5000
local MOST_REFS = 64 -- as in verdict.py

local call = redis.call
local prefix = ARGV[1]
local CLOSED_UNTIL = prefix .. 'closed_until'
local machine, seen, group_ttl, entry_ms, dead_ms, delivered_payload_ms, most_payload_bytes =
  unpack(cmsgpack.unpack(ARGV[2]))
local MACHINE = prefix .. 'machine:' .. machine
local request = cmsgpack.unpack(ARGV[3])
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local GATES = {
  email_id = 'identity', post = 'identity', proof = 'proof', subject_group = 'subject_group', media = 'media', content = 'content',
  lock = 'lock',
}

local function is_own(name) return GATES[name[KIND]] == 'identity' or name[KIND] == 'proof' end

-- What was made or read once in a script is not made or read again.
local labels, pointers, known_marks, known_refs = {}, {}, {}, {}

local function label_of(name)
  local label = labels[name]
  if not label then
    label = name[KIND] .. ':' .. name[SCOPE] .. ':' .. name[VALUE]
    labels[name] = label
  end
  return label
end

local function digest_of(name) return string.sub(redis.sha1hex(label_of(name)), 1, 20) end

local function pointer(name)
  local label = label_of(name)
  if not pointers[label] then pointers[label] = prefix .. 'n:' .. digest_of(name) end
  return pointers[label]
end

local function announce(list, what)
  call('ZADD', prefix .. list, now, what)
  call('ZREMRANGEBYSCORE', prefix .. list, '-inf', now - entry_ms)
end

-- Why nothing can be decided here now: this Redis knows less than the machine was told by it, or it did, and is closed
-- until the machines have told it what they know. {"lost_memory"} or {"closed", ms left} is then the whole answer.
local function refusal_by(given, closed_until)
  if seen > tonumber(given or 0) then return {'lost_memory'} end
  if closed_until and tonumber(closed_until) > now then return {'closed', tonumber(closed_until) - now} end
end

local function refusal() return refusal_by(unpack(call('MGET', MACHINE, CLOSED_UNTIL))) end

-- Every step takes a number, settlements too: a Redis that lost one of them is noticed by whoever asks next.
-- Where it lost more, only telling it everything raises the machine's number again: others may have raised the fence
-- meanwhile, and whoever settled then hid the loss from his own machine.
local function next_number(is_told)
  local number = call('INCR', prefix .. 'fence')
  local given = call('GETSET', MACHINE, number)
  if seen > tonumber(given or 0) and not is_told then call('SET', MACHINE, given or 0) end
  return number
end

-- An entry, and how it is written: unpacked once more, that is the entry before whatever is made of it
local function read_entry(id)
  local stored = call('GET', prefix .. 'entry:' .. id)
  return stored and cmsgpack.unpack(stored), stored
end

-- Where a name's mark stands: {key, member (in a Set) or false, the value that says done, the one that says pending}
local function spell(name)
  local kind, scope, value = name[KIND], name[SCOPE], name[VALUE]
  if kind == 'email_id' then return {prefix .. 'processed_ids:' .. scope, value} end
  if kind == 'post' or kind == 'proof' then return {prefix .. 'post:' .. value, false, '0', 'pending'} end
  if kind == 'media' then return {prefix .. 'media:' .. value, false, '1', 'pending'} end
  if kind == 'content' then return {prefix .. 'dedup:' .. scope .. ':' .. value, false, '1'} end
  if kind == 'lock' then return {prefix .. 'lock:' .. scope .. ':' .. value, false, 'released', 'held'} end
  local member = scope .. ':' .. value
  if group_ttl then return {prefix .. 'ttl:subject_groups:' .. member, false, '1', false, member} end
  return {prefix .. 'subject_groups:' .. scope, member}
end

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

local function note_refs(name, written)
  local refs = {}
  for id, created in string.gmatch(written or '', '([^%s@]+)@?(%d*)') do refs[#refs + 1] = {id, tonumber(created)} end
  known_refs[label_of(name)] = refs
  return refs
end

-- {{id, created_ms (of a shared name)}...} of the entries under a name
local function refs_of(name) return known_refs[label_of(name)] or note_refs(name, call('GET', pointer(name))) end

local function write_refs(name, refs, kept_ms)
  known_refs[label_of(name)] = refs
  if #refs == 0 then
    call('DEL', pointer(name))
    return
  end
  local words = {}
  for i, ref in ipairs(refs) do words[i] = is_own(name) and ref[1] or ref[1] .. '@' .. string.format('%.0f', ref[2]) end
  local text = table.concat(words, ' ')
  if kept_ms then call('SET', pointer(name), text, 'PX', kept_ms) else call('SET', pointer(name), text) end
end

-- A Set's members go together, so it lives as long as the longest of them.
local function add_members(key, members, kept_ms)
  local added = call('SADD', key, unpack(members))
  local left_ms = call('PTTL', key)
  if not kept_ms then
    if left_ms >= 0 then call('PERSIST', key) end
  elseif left_ms >= 0 then
    if left_ms < kept_ms then call('PEXPIRE', key, kept_ms) end
  elseif added > 0 and call('SCARD', key) == added then
    call('PEXPIRE', key, kept_ms)
  end
end

-- How long the mark of a name lasts from now on, nil for ever; merge tells of marks that were made some time ago.
local marked_for_ms = 0

local function mark_left(name) return name[KEPT] and name[KEPT] - marked_for_ms end

local function is_mark_over(name) return name[KEPT] and mark_left(name) <= 0 end

local function mark_all(names)
  local sets = {}
  for _, name in ipairs(names) do
    known_marks[label_of(name)] = true
    local key, member, done, _, history = unpack(spell(name))
    local kept_ms = mark_left(name)
    if not member then
      if kept_ms then call('SET', key, done, 'PX', kept_ms) else call('SET', key, done) end
      key, member = prefix .. 'subject_groups:' .. name[SCOPE], history
    end
    if member then
      local set = sets[key] or {members = {}, kept_ms = kept_ms}
      set.members[#set.members + 1] = member
      set.kept_ms = set.kept_ms and kept_ms and math.max(set.kept_ms, kept_ms)
      sets[key] = set
    end
  end
  for key, set in pairs(sets) do add_members(key, set.members, set.kept_ms) end
end

local function drop_mark(name)
  known_marks[label_of(name)] = false
  local key, member, _, _, history = unpack(spell(name))
  if member then call('SREM', key, member) else call('DEL', key) end
  if history then call('SREM', prefix .. 'subject_groups:' .. name[SCOPE], history) end
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

-- Still to be sent, or a person may ask for it; under way only if it had come to an end before (entry.py, needs_payload)
local function needs_payload(entry)
  if entry[STATE] ~= 'done' then return entry[E_GENERATION] > 0 end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[STATUS] ~= 'delivered' then return true end
  end
  return false
end

local function next_generation(entry)
  local highest = entry[E_GENERATION]
  for _, delivery in ipairs(entry[DELIVERIES]) do highest = math.max(highest, delivery[GENERATION]) end
  return highest + 1
end

-- A re-send joins it (verdict.py, freed)
local function set_free_again(entry)
  entry[STOP] = false
  if entry[STATE] == 'free' then return end
  entry[E_GENERATION] = next_generation(entry)
  entry[STATE], entry[OWNER], entry[LEASE], entry[RELEASED] = 'free', '', 0, false
end

-- Its words are not taken, but asked for when it is begun (verdict.py, _due_now)
local function set_due_now(delivery)
  delivery[STATUS], delivery[NEXT_TRY], delivery[AWAITS] = 'waiting', now, delivery[CONTENT] and true
end

-- Done, whatever it was; what a re-send left open is due too (verdict.py, _taken_up)
local function take_up(entry, generation)
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if entry[STATE] ~= 'done' and is_open(delivery) then set_due_now(delivery) end
  end
  entry[STATE], entry[LEASE], entry[SETTLED], entry[E_GENERATION] = 'done', 0, now, generation
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
      if delivery[STATUS] == 'delivered' then return entry[TRIAL] and 'held' or 'marked' end
      any_open = any_open or (is_open(delivery) and not (is_content and delivery[AWAITS]))
    end
  end
  return entry[STATE] ~= 'free' and any_open and 'held' or 'given back'
end

-- Another item at a shared name: done, under way (held_ms left), or stored for a later try. Its own entry never stops
-- it, and what was only printed is in the way of nothing but what is only printed.
local function met_by(name, own_entry, for_trial)
  local ref = refs_of(name)[1]
  if ref and ref[1] == own_entry then return nil end
  local original, created = ref and ref[1] or false, ref and ref[2] or false
  if is_marked(name) then return {name = name, original = original, created = created} end
  local holder = ref and read_entry(ref[1])
  if not holder or (holder[TRIAL] and not for_trial) then return nil end
  if standing(holder, name, label_of(name)) ~= 'held' then return nil end -- its mark is over, and with it the name
  if holder[TRIAL] and holder[STATE] == 'done' then return {name = name, original = original, created = created} end
  if is_held(holder) then return {name = name, original = original, created = created, held_ms = holder[LEASE] - now} end
  if has_open_deliveries(holder) then return {name = name, original = original, created = created, stored = true} end
end

-- A lock is an entry too, but not an item that anybody sent: it is not listed, and not kept when it is over.
local function is_lock(entry) return entry[OWN][1] and entry[OWN][1][KIND] == 'lock' end

-- Until when an entry is kept; nil while something is still to be delivered
local function kept_until(entry)
  if has_open_deliveries(entry) then return nil end
  if is_lock(entry) and #entry[DELIVERIES] == 0 then return now end
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

-- What refers to an entry is written again only if its end moves to another hour, not for the seconds that a delivery
-- takes; and if it would be over, as each change then gives it one more.
local function is_kept_otherwise(entry, before)
  local one, other = kept_until(entry), kept_until(before)
  if not one or not other then return one ~= other end
  return one < now + HOUR_MS or math.floor(one / HOUR_MS) ~= math.floor(other / HOUR_MS)
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
  local refs, is_known = is_own(name) and refs_of(name) or {}, false
  for _, ref in ipairs(refs) do is_known = is_known or ref[1] == entry[ID] end
  if not is_known then refs[#refs + 1] = {entry[ID], entry[CREATED]} end
  if #refs > MOST_REFS then table.remove(refs, 1) end
  if #refs == 1 then write_refs(name, refs, kept_ms) else write_all_refs(name, refs) end
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

-- With its mark a shared name keeps telling the original.
local function give_back(name, entry)
  if is_own(name) or not is_marked(name) then
    unrefer(name, entry[ID])
  elseif holds(entry, name) then
    refer(name, entry, name[KEPT])
  end
  show(name, nil)
end

-- The words of a delivery at its destination are as if it had never brought them.
local function drop_words(delivery, id)
  local ref = delivery[CONTENT] and refs_of(delivery[CONTENT])[1]
  if ref and ref[1] == id then
    drop_mark(delivery[CONTENT])
    unrefer(delivery[CONTENT], id)
  end
end

-- The index of what waits: handed out to all (at is ""), or to the machine that has its payload
local function due_key(at, destination)
  return prefix .. (at == '' and 'due:' or 'due_at:' .. at .. ':') .. destination
end

local function index_deliveries(entry, before)
  for _, was in ipairs(before and before[DELIVERIES] or {}) do
    if not delivery_to(entry, was[DESTINATION]) then
      if was[STATUS] == 'dead' then call('ZREM', prefix .. 'dead:' .. was[DESTINATION], entry[ID]) end
      if is_open(was) then call('ZREM', due_key(before[PAYLOAD_MACHINE], was[DESTINATION]), entry[ID]) end
    end
  end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    local was = before and delivery_to(before, delivery[DESTINATION])
    local was_due = was and before[STATE] == 'done' and is_open(was) and was[NEXT_TRY]
    local due = entry[STATE] == 'done' and is_open(delivery) and delivery[NEXT_TRY]
    local was_dead, dead = was and was[STATUS] == 'dead', delivery[STATUS] == 'dead' and not is_lock(entry)
    if (due and not was_due) or dead then
      call('SADD', prefix .. 'destinations', delivery[DESTINATION])
    end
    local index = due and due_key(entry[PAYLOAD_MACHINE], delivery[DESTINATION])
    local was_index = was_due and due_key(before[PAYLOAD_MACHINE], delivery[DESTINATION])
    if was_due and (not due or was_index ~= index) then call('ZREM', was_index, entry[ID]) end
    if due and (due ~= was_due or was_index ~= index) then
      call('ZADD', index, due, entry[ID])
      if entry[PAYLOAD_MACHINE] ~= '' then call('SADD', prefix .. 'payload_machines', entry[PAYLOAD_MACHINE]) end
    end
    if dead and not was_dead then
      local index = prefix .. 'dead:' .. delivery[DESTINATION]
      call('ZADD', index, now, entry[ID])
      call('ZREMRANGEBYSCORE', index, '-inf', now - dead_ms)
    elseif was_dead and not dead then
      call('ZREM', prefix .. 'dead:' .. delivery[DESTINATION], entry[ID])
    end
  end
end

-- Payloads. What one counts for stands in its entry; whatever takes it away takes that off in the same step.

local COUNTED, ENDS = prefix .. 'payload_bytes', prefix .. 'payload_ends'

local function payload_key(id) return prefix .. 'payload:' .. id end

local function payload_end(entry) return 'payload:' .. entry[ID] .. ' ' .. entry[PAYLOAD_BYTES] end

local function has_payload(entry)
  return entry[PAYLOAD_BYTES] > 0 and (entry[PAYLOAD_MACHINE] ~= '' or call('EXISTS', payload_key(entry[ID])) == 1)
end

-- Whether it fits; then it is counted. What nobody else has is taken in any case.
local function take_room(bytes, is_forced)
  if call('INCRBY', COUNTED, bytes) <= most_payload_bytes or is_forced then return true end
  call('DECRBY', COUNTED, bytes)
  return false
end

-- had_end: it may be in the list of those that end by themselves
local function drop_payload(entry, had_end)
  if entry[PAYLOAD_BYTES] > 0 and entry[PAYLOAD_MACHINE] == '' then
    call('DEL', payload_key(entry[ID]))
    call('DECRBY', COUNTED, entry[PAYLOAD_BYTES])
    if had_end then call('ZREM', ENDS, payload_end(entry)) end
  end
  entry[PAYLOAD_BYTES], entry[PAYLOAD_MACHINE] = 0, ''
end

-- An email that is delivered at once has no payload, and spends nothing here.
local function keep_payload(entry, before, kept_ms, is_end_moved)
  if entry[PAYLOAD_BYTES] == 0 then return end
  local is_needed, had_end = needs_payload(entry), before and before[PAYLOAD_BYTES] > 0 and kept_for(before)
  local is_same = before and before[PAYLOAD_BYTES] == entry[PAYLOAD_BYTES]
    and before[PAYLOAD_MACHINE] == entry[PAYLOAD_MACHINE] and needs_payload(before) == is_needed
  if is_same and not is_end_moved then return end
  if not is_needed and delivered_payload_ms == 0 then
    drop_payload(entry, had_end)
  elseif entry[PAYLOAD_MACHINE] == '' then
    local left_ms = is_needed and kept_ms and kept_ms + 2 * HOUR_MS
    if not is_needed then left_ms = delivered_payload_ms end
    if left_ms then
      call('PEXPIRE', payload_key(entry[ID]), left_ms)
      call('ZADD', ENDS, now + left_ms, payload_end(entry))
    elseif had_end then
      call('PERSIST', payload_key(entry[ID]))
      call('ZREM', ENDS, payload_end(entry))
    end
  end
end

local function given_payload() return ARGV[5] == '1' or (ARGV[4] ~= '' and ARGV[4]) end

-- payload: the bytes, or true for what was sent ahead and is counted already. Followed by save, which knows how long it is
-- kept. False: there is no room for it, and nothing has changed.
local function put_payload(entry, payload, bytes, is_forced)
  local key, upload = payload_key(entry[ID]), prefix .. 'upload:' .. entry[ID]
  if payload == true then
    if call('EXISTS', upload) == 0 then return false end
  elseif not take_room(bytes, is_forced) then
    return false
  end
  drop_payload(entry, true)
  if payload == true then
    call('ZREM', ENDS, 'upload:' .. entry[ID] .. ' ' .. bytes)
    call('RENAME', upload, key)
    call('PERSIST', key)
  else
    call('SET', key, payload)
  end
  entry[PAYLOAD_BYTES], entry[PAYLOAD_MACHINE] = bytes, ''
  return true
end

-- It lies on the disk of the machine that asks, and is delivered from there.
local function leave_payload(entry, bytes)
  drop_payload(entry, true)
  entry[PAYLOAD_BYTES], entry[PAYLOAD_MACHINE] = bytes, bytes > 0 and machine or ''
end

local function is_of_another(name, entry)
  local ref = refs_of(name)[1]
  return is_marked(name) or (ref and ref[1] ~= entry[ID] and read_entry(ref[1]))
end

-- What was settled within an hour is kept no longer than the list of its hour; this one may be.
local function list_late(entry, kept_ms)
  call('ZREMRANGEBYSCORE', prefix .. 'late', '-inf', now)
  call('ZADD', prefix .. 'late', now + kept_ms, entry[ID] .. ' ' .. string.format('%.0f', entry[CREATED]))
end

-- The entry, and what its change means for its payload and each of its names (local.py, _save). Returns it packed.
local function save(entry, before)
  local kept_ms = kept_for(entry)
  local is_end_moved = before and is_kept_otherwise(entry, before)
  keep_payload(entry, before, kept_ms, is_end_moved)
  local key, packed = prefix .. 'entry:' .. entry[ID], cmsgpack.pack(entry)
  if kept_ms then call('SET', key, packed, 'PX', kept_ms) else call('SET', key, packed) end
  local names, past = names_of(entry), before and names_of(before) or {}
  local shown = entry[STATE] == 'pending' and 'pending'
  if not shown and (entry[RETRIES] or 0) > 0 then shown = tostring(entry[RETRIES]) end -- a 0 would say done
  local marked = {}
  for label, name in pairs(names) do
    local was, is = past[label] and standing(before, name, label), standing(entry, name, label)
    if is == 'given back' then
      if was ~= is then give_back(name, entry) end
    elseif is_own(name) then
      if not was or is_end_moved then refer(name, entry, kept_ms and kept_ms + 2 * HOUR_MS) end
    elseif entry[TRIAL] and is_of_another(name, entry) then
      -- what is only printed takes a name from nobody
    elseif is == 'marked' and is_mark_over(name) then
      -- nothing refers to it any more
    elseif was ~= is or (is_end_moved and holds(entry, name)) then
      local ref_ms = kept_ms  -- while something is open as long as that, then as long as the mark
      if kept_ms and (is == 'marked' or is_marked(name)) then ref_ms = mark_left(name) end
      refer(name, entry, ref_ms)
    end
    if is == 'marked' and was ~= is and not is_mark_over(name) then marked[#marked + 1] = name end
    if is == 'held' and (was ~= is or before[STATE] ~= entry[STATE] or name[KIND] == 'lock') then
      show(name, shown, name[KIND] == 'lock' and math.max(1, entry[LEASE] - now) or entry_ms)
    end
  end
  mark_all(marked)
  for label, name in pairs(past) do
    if not names[label] then give_back(name, entry) end
  end
  index_deliveries(entry, before)
  if is_lock(entry) then
    call('ZADD', prefix .. 'locks', entry[STATE] == 'pending' and entry[LEASE] or 0, entry[ID])
    call('ZREMRANGEBYSCORE', prefix .. 'locks', '-inf', now)
  elseif not before then
    local hour = prefix .. 'entries:' .. math.floor(entry[CREATED] / HOUR_MS)
    if call('RPUSH', hour, entry[ID]) == 1 then call('PEXPIRE', hour, entry_ms + 3 * HOUR_MS) end
  end
  if kept_ms and (not before or is_end_moved) and entry[CREATED] < now - HOUR_MS and not is_lock(entry) then
    list_late(entry, kept_ms)
  end
  return packed
end

-- What was skipped is due now
local function wait_for_release(delivery)
  set_due_now(delivery)
  delivery[REASON], delivery[GENERATION] = 'released', delivery[GENERATION] + 1
end

-- The last open delivery has ended: delivered somewhere, its followers stay skipped; dead everywhere, the oldest of them
-- goes out in its place (verdict.py, promoted)
local function end_if_over(entry)
  if entry[STATE] ~= 'done' or entry[STOP] and not entry[RELEASED] then return end
  if has_open_deliveries(entry) then return end
  local list = prefix .. 'followers:' .. entry[ID]
  local ids = call('LRANGE', list, 0, -1)
  if #ids == 0 then return end
  call('DEL', list)
  local is_delivered, first = is_delivered_somewhere(entry), nil
  for _, id in ipairs(ids) do
    local follower = read_entry(id)
    local stop = follower and follower[STATE] == 'done' and not follower[RELEASED] and follower[STOP]
    if stop and stop[4] and stop[2] == entry[ID] then
      local before = cmsgpack.unpack(cmsgpack.pack(follower))
      if is_delivered then
        stop[4] = false
      elseif not first then
        first = follower
        follower[E_GENERATION] = next_generation(follower)
        for _, delivery in ipairs(follower[DELIVERIES]) do
          if delivery[STATUS] == 'skipped' then wait_for_release(delivery) end
        end
        follower[SHARED] = GATES[stop[1][KIND]] ~= 'content' and {stop[1]} or {}
        follower[RELEASED] = now
        announce('generations', id)
      else
        stop[2], stop[3] = first[ID], first[CREATED]
        call('RPUSH', prefix .. 'followers:' .. first[ID], id)
      end
      save(follower, before)
    end
  end
end
