-- Asks for an item by all its names at once. Follows entry.lua, which says what ARGV[1] and ARGV[2] hold.
--
-- ARGV[3]  {entry, owner, lease_ms, fingerprint, own, shared, destinations {{destination, webhook_id, content}...},
--          about, is_trial}
-- Returns one of
--   {"claimed", entry, is_first (1 or 0), label left out...}
--   {"stopped", entry}                                        the owner settles it together with its payload
--   {"repeat", position of the own name, original, created_ms, what its provider was told, fate (open, dead or over)}
--   {"refused", position of the proof, original, created_ms}  the last two where the other item is still known
--   {"in_flight", gate, label, ms left}
--   or what refusal says

local id, owner, lease_ms, fingerprint, own, shared, destinations, about, is_trial = unpack(request)

local function fate_of(entry)
  if has_open_deliveries(entry) then return 'open' end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[STATUS] == 'dead' then return 'dead' end
  end
  return 'over'
end

-- Identity: the entries under the item's own names, in the order of these

local keys = {MACHINE, CLOSED_UNTIL}
for _, name in ipairs(own) do keys[#keys + 1] = pointer(name) end
local known = call('MGET', unpack(keys))
local refused = refusal_by(known[1], known[2])
if refused then return refused end
for i, name in ipairs(own) do note_refs(name, known[i + 2]) end

local under, met_at, marked = {}, {}, nil
for position, name in ipairs(own) do
  local found = false
  for _, ref in ipairs(refs_of(name)) do
    local entry = under[ref[1]] or read_entry(ref[1])
    if entry then
      found = true
      if not under[ref[1]] then
        under[ref[1]], met_at[ref[1]] = entry, {position = position, dated = false}
        under[#under + 1] = entry
      end
      met_at[ref[1]].dated = met_at[ref[1]].dated or not is_undated(name)
    end
  end
  if not found and not marked and not is_undated(name) and is_marked(name) then marked = name end
end

local function answer_to(entry, packed, is_first, left_out)
  if entry[STOP] then return {'stopped', packed} end
  local answer = {'claimed', packed, is_first and 1 or 0}
  for _, name in ipairs(left_out or {}) do answer[#answer + 1] = label_of(name) end
  return answer
end

local mine
for _, entry in ipairs(under) do
  if entry[OWNER] == owner then
    if entry[STATE] == 'done' then return answer_to(entry, cmsgpack.pack(entry), false) end
    mine = mine or entry
  end
end

local candidates, is_candidate = {}, {}
for _, entry in ipairs(under) do
  local is_same = is_same_item(fingerprint, entry, met_at[entry[ID]].dated)
  if entry == mine or is_same then
    candidates[#candidates + 1] = entry
    is_candidate[entry[ID]] = true
  end
end

local function is_nearer(one, other)
  local ours = parts_of(fingerprint)
  local a, b = equal_parts(ours, parts_of(one[PRINT])), equal_parts(ours, parts_of(other[PRINT]))
  if a ~= b then return a > b end
  a, b = met_at[one[ID]].position, met_at[other[ID]].position
  if a ~= b then return a < b end
  if one[CREATED] ~= other[CREATED] then return one[CREATED] < other[CREATED] end
  return one[ID] < other[ID]
end

local settled, held, joined
for _, entry in ipairs(candidates) do
  if entry[STATE] == 'done' and (is_trial or not entry[TRIAL]) then
    if not settled or is_nearer(entry, settled) then settled = entry end
  elseif entry ~= mine and is_held(entry) then
    if not held or entry[LEASE] > held[LEASE] then held = entry end
  end
  if not joined or is_nearer(entry, joined) then joined = entry end
end
if settled then
  if settled[REPEATED_BY] ~= owner then
    settled[REPEATS], settled[REPEATED], settled[REPEATED_BY] = settled[REPEATS] + 1, now, owner
    settled[PRINT] = filled(settled[PRINT], fingerprint)
    call('SET', prefix .. 'entry:' .. settled[ID], cmsgpack.pack(settled), 'KEEPTTL')
  end
  return {'repeat', met_at[settled[ID]].position, settled[ID], settled[CREATED], settled[ANSWER], fate_of(settled)}
end

-- Most calls end above. What only the rest needs is defined here (lua_source.py).

-- A proof that was accepted with one item proves no other.
for position, name in ipairs(own) do
  if name[KIND] == 'proof' then
    local is_known, held_ms = false, nil
    for _, ref in ipairs(refs_of(name)) do
      local entry = under[ref[1]]
      is_known = is_known or entry ~= nil
      if entry and not is_candidate[ref[1]] then
        if entry[STATE] == 'done' then return {'refused', position, entry[ID], entry[CREATED]} end
        if is_held(entry) then held_ms = held_ms or entry[LEASE] - now end
      end
    end
    if not is_known and is_marked(name) then return {'refused', position} end
    if held_ms then return {'in_flight', 'proof', label_of(name), held_ms} end
  end
end
if held then
  local name = own[met_at[held[ID]].position]
  return {'in_flight', GATES[name[KIND]], label_of(name), held[LEASE] - now}
end
joined = mine or joined

-- Where it goes: the present route decides; what a candidate has delivered counts as delivered

-- What was only printed begins anew when it is to be sent: that it was "delivered" is older news.
local generation = joined and joined[E_GENERATION] or 0
if joined and joined[TRIAL] and not is_trial then generation = next_generation(joined) end

local deliveries = {}
for _, wanted in ipairs(destinations) do
  local had
  for _, entry in ipairs(candidates) do
    local delivery = delivery_to(entry, wanted[1])
    if delivery and is_delivered(delivery, entry) then
      had = delivery
      break
    end
  end
  if not had then
    had = {
      wanted[1], wanted[2], 'delivering', generation, 0, 0, false, false, '', 0, 0, false, false,
      wanted[3], false, {}, false, '',
    }
    local before = joined and delivery_to(joined, wanted[1])
    if before then had[WEBHOOK], had[TRIES], had[ATTEMPTS] = before[WEBHOOK], before[TRIES], before[ATTEMPTS] end
  end
  deliveries[#deliveries + 1] = had
end
for _, delivery in ipairs(joined and joined[DELIVERIES] or {}) do
  local is_wanted = false
  for _, each in ipairs(deliveries) do is_wanted = is_wanted or each[DESTINATION] == delivery[DESTINATION] end
  if not is_wanted and is_delivered(delivery, joined) then deliveries[#deliveries + 1] = delivery end
end

local function skip_all()
  for _, delivery in ipairs(deliveries) do
    if delivery[STATUS] ~= 'delivered' then delivery[STATUS] = 'skipped' end
  end
end

local function take(stop, left_out)
  local before = joined and cmsgpack.unpack(cmsgpack.pack(joined))
  local entry = joined or {
    id, 'pending', owner, 0, 0, now, fingerprint, {}, {}, {}, false, '', false, false, false, 0, false, '', is_trial, about,
    0, 0, '',
  }
  local known, all = {}, {}
  for _, names in ipairs({own, entry[OWN]}) do
    for _, name in ipairs(names) do
      if not known[label_of(name)] then
        known[label_of(name)] = true
        all[#all + 1] = name
      end
    end
  end
  local is_left_out, kept = {}, {}
  for _, name in ipairs(left_out or {}) do is_left_out[label_of(name)] = true end
  if not stop then
    for _, name in ipairs(shared) do
      if not is_left_out[label_of(name)] then kept[#kept + 1] = name end
    end
  end
  if stop then skip_all() end
  if is_lock(entry) and entry[OWNER] ~= owner then entry[CREATED] = now end -- whoever takes it over has a new lock
  entry[STATE], entry[OWNER], entry[FENCE], entry[LEASE] = 'pending', owner, next_number(), now + lease_ms
  entry[OWN], entry[SHARED], entry[DELIVERIES] = all, kept, deliveries
  if #under > 0 then entry[PRINT] = filled(entry[PRINT], fingerprint) end
  entry[STOP], entry[ABOUT], entry[TRIAL] = stop or false, about, is_trial and entry[TRIAL]
  entry[E_GENERATION] = generation
  return answer_to(entry, save(entry, before), joined == nil, left_out)
end

-- What a mark stopped whose entry is gone, and nobody settled, is stopped by it again, until that is reset (verdict.py,
-- _marked_before)
if joined then
  local stopping = joined[STOP] and label_of(joined[STOP][1])
  marked = nil
  for _, name in ipairs(joined[OWN]) do
    if label_of(name) == stopping then marked = name end
  end
  for _, name in ipairs(own) do
    if label_of(name) == stopping and not is_marked(name) then marked = nil end
  end
end
if marked then return take({marked, false, false, false}) end

-- The gates of the names it shares with other items

local own_entry = joined and joined[ID]

local function stop_of(met) return {met.name, met.original, met.created, met.stored or false} end

local function in_flight(met) return {'in_flight', GATES[met.name[KIND]], label_of(met.name), met.held_ms} end

local left_out = {}
for _, gate in ipairs({'subject_group', 'media'}) do
  local asked, done, longest, first = 0, {}, nil, nil
  for _, name in ipairs(shared) do
    if GATES[name[KIND]] == gate then
      asked = asked + 1
      local met = met_by(name, own_entry, is_trial)
      if met and met.held_ms then
        if not longest or met.held_ms > longest.held_ms then longest = met end
      elseif met then
        done[#done + 1] = name
        if not first or (first.stored and not met.stored) then first = met end
      end
    end
  end
  if first and #done == asked then return take(stop_of(first)) end
  if longest then return in_flight(longest) end
  for _, name in ipairs(done) do left_out[#left_out + 1] = name end
end

-- A destination that had the same words is left out; one where they are on their way is asked again later.

local met, is_anything_sent, longest, first = {}, false, nil, nil
for i, delivery in ipairs(deliveries) do
  local found = is_open(delivery) and delivery[CONTENT] and met_by(delivery[CONTENT], own_entry, is_trial)
  if found then
    met[i] = found
    if found.held_ms then
      if not longest or found.held_ms > longest.held_ms then longest = found end
    elseif not first or (first.stored and not found.stored) then
      first = found
    end
  elseif is_open(delivery) or delivery[STATUS] == 'delivered' then
    is_anything_sent = true
  end
end
if not is_anything_sent then
  if longest then return in_flight(longest) end
  if first then return take(stop_of(first)) end
end
for i, found in pairs(met) do
  local delivery = deliveries[i]
  if found.held_ms or found.stored then
    delivery[STATUS], delivery[REASON], delivery[AWAITS] = 'waiting', 'the same content is on its way', true
    delivery[NEXT_TRY] = now + (found.held_ms or CONTENT_ASKED_AGAIN_MS)
  else
    local original = found.original or 'another program'
    delivery[STATUS], delivery[REASON] = 'skipped', 'repeats ' .. label_of(found.name) .. ' of ' .. original
  end
end
return take(nil, left_out)
