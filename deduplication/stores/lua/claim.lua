-- Reserves all names or none, and if it could, gives back request.dropped, which the same owner holds.
-- Follows records.lua, which says what KEYS and ARGV hold; the names come in gate order.
-- Returns JSON, one of
--   {verdict: "claimed", fence, retries_left?, left_out?}
--   {verdict: "duplicate", gate, name, original?, first_seen_ms?}
--   {verdict: "in_flight", gate, name, retry_after_ms}
--   {verdict: "lost_memory"}                 this is not the memory the server knows (request.memory, request.seen_fence)
--   {verdict: "restoring", retry_after_ms}   the servers are telling this memory what it lost

local left_out = {}

local function give_back_dropped()
  for _, name in ipairs(request.dropped or {}) do
    local record = mine(name, read(name))
    if record and record.state == 'pending' then save_free(name, record) end
  end
end

local function duplicate(gate, label, original, first_seen_ms)
  give_back_dropped()
  return cjson.encode({
    verdict = 'duplicate', gate = gate, name = label, original = original, first_seen_ms = first_seen_ms,
  })
end

local function claimed(fence, retries_left)
  give_back_dropped()
  return cjson.encode({
    verdict = 'claimed', fence = fence, retries_left = retries_left, left_out = #left_out > 0 and left_out or nil,
  })
end

-- The done record of the same fingerprint, else the oldest one, and the pending one longest held by another, of those that stand for the same item.
local function met(name, records)
  local wanted, done, held = field_of(name), nil, nil
  for fingerprint, record in pairs(records) do
    if is_same_item(name, fingerprint) then
      if record.state == 'done' then
        if not done or (record.first_seen_ms or 0) < (done.first_seen_ms or 0) then done = record end
      elseif record.state == 'pending' and record.owner ~= request.owner and record.lease_until_ms > now_ms then
        if not held or record.lease_until_ms > held.lease_until_ms then held = record end
      end
    end
  end
  local exact = is_same_item(name, wanted) and records[wanted]
  return exact and exact.state == 'done' and exact or done, held
end

if request.memory then
  local id, opens_ms = unpack(redis.call('HMGET', KEYS[2], 'id', 'opens_ms'))
  if id ~= request.memory or tonumber(redis.call('GET', KEYS[1]) or 0) < request.seen_fence then
    return cjson.encode({verdict = 'lost_memory'})
  end
  if opens_ms and tonumber(opens_ms) > now_ms then
    return cjson.encode({verdict = 'restoring', retry_after_ms = tonumber(opens_ms) - now_ms})
  end
end

-- Media that other items brought are left out, unless that is all there are: then they stop this one.
local media, done_media, read_once = 0, {}, {}
for _, name in ipairs(request.names) do
  read_once[name.label] = read(name)
  if name.gate == 'media' then
    local record = read_once[name.label]['-']
    media = media + 1
    if record and record.state == 'done' and record.owner ~= request.owner then done_media[name.label] = true end
  end
end
local names = {}
for _, name in ipairs(request.names) do
  if done_media[name.label] then left_out[#left_out + 1] = name.label else names[#names + 1] = name end
end
if #left_out < media then request.names = names else left_out = {} end

local known = {}
for i, name in ipairs(request.names) do known[i] = read_once[name.label] end

-- The same owner asking again gets the answer it got.
for i, name in ipairs(request.names) do
  local record = mine(name, known[i])
  if record and record.state == 'done' then
    if record.gate then return duplicate(record.gate, record.by, record.original, record.original_seen_ms) end
    return claimed(record.fence or 0, record.retries_left)
  end
end

local function settle_as_skipped(gate, by, record)
  for _, name in ipairs(request.names) do
    if name.own then
      local skipped = fresh(name)
      skipped.gate, skipped.by = gate, by
      skipped.original, skipped.original_seen_ms = record.item, record.first_seen_ms
      save_done(name, skipped)
    end
  end
end

-- Gate by gate: a done name stops the item for good, a pending one of another owner for now.
local waiting
for i, name in ipairs(request.names) do
  if waiting and waiting.gate ~= name.gate then break end
  local done, held = met(name, known[i])
  if done then
    if not name.own then settle_as_skipped(name.gate, name.label, done) end
    return duplicate(name.gate, name.label, done.item, done.first_seen_ms)
  end
  if held then
    local held_ms = held.lease_until_ms - now_ms
    waiting = waiting or {verdict = 'in_flight', gate = name.gate, name = name.label, retry_after_ms = held_ms}
    waiting.retry_after_ms = math.max(waiting.retry_after_ms, held_ms)
  end
end
if waiting then return cjson.encode(waiting) end

local fence, all_mine = nil, true
for i, name in ipairs(request.names) do
  local record = mine(name, known[i])
  if record then fence = record.fence else all_mine = false end
end
if not all_mine then fence = redis.call('INCR', KEYS[1]) end

local retries_left
for i, name in ipairs(request.names) do
  local record, before = fresh(name), known[i][field_of(name)]
  record.fence = fence
  if before and name.own and is_same_item(name, field_of(name)) then
    record.first_seen_ms, record.retries_left = before.first_seen_ms, before.retries_left
    if before.retries_left then retries_left = math.min(retries_left or before.retries_left, before.retries_left) end
  end
  save_pending(name, record, request.lease_ms)
end
return claimed(fence, retries_left)
