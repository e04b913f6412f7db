-- Ends a claim: done or free. Follows entry.lua, which says what ARGV[1] and ARGV[2] hold.
--
-- ARGV[3]  {entry, owner, ending ("done" or "free"), answer, deliveries, retries_left or false,
--          own, shared, fingerprint, about, is_trial, bytes, is_here}; own to is_trial for an entry that was forgotten
--          meanwhile; bytes: of the payload; is_here: it lies on the machine's own disk
-- ARGV[4]  the payload, "" for none, where it was sent ahead (ARGV[5] is "1"), or where it lies on the machine
-- Returns {number, 1}, or {number, 0} where the owner decides nothing any more (what it delivered is taken all the same), or where the item
-- that stopped this one turned out dead meanwhile; {number, 2} where there is no room for the payload: nothing is settled.

local id, owner, ending, answer, deliveries, retries_left, own, shared, fingerprint, about, is_trial, bytes, is_here =
  unpack(request)
local number = next_number()
local entry = read_entry(id)

local function put_deliveries(only_facts)
  for _, delivery in ipairs(deliveries) do
    local known, i = delivery_to(entry, delivery[DESTINATION])
    if i and (not only_facts or delivery[STATUS] == 'delivered') then
      if only_facts then delivery[GENERATION] = known[GENERATION] end
      entry[DELIVERIES][i] = delivery
    end
  end
end

local before
if not entry then
  local any_delivered = false
  for _, delivery in ipairs(deliveries) do any_delivered = any_delivered or delivery[STATUS] == 'delivered' end
  if not any_delivered then return {number, 0} end
  entry = {
    id, 'pending', owner, number, 0, now, fingerprint, own, shared, deliveries, false, '', false, false, false, 0, false,
    '', is_trial, about, 0, 0, '',
  }
else
  before = {unpack(entry)} -- deliveries are replaced as a whole, so their list is all that is to be copied
  before[DELIVERIES] = {unpack(entry[DELIVERIES])}
  if entry[OWNER] ~= owner or entry[STATE] ~= 'pending' then
    put_deliveries(true)
    save(entry, before)
    end_if_over(entry)
    return {number, entry[OWNER] == owner and before[STATE] == 'done' and ending == 'done' and 1 or 0}
  end
end

if retries_left then
  entry[RETRIES] = entry[RETRIES] and math.min(entry[RETRIES], retries_left) or retries_left
end

local function set_free()
  entry[STATE], entry[OWNER], entry[LEASE] = 'free', '', 0
  entry[STOP] = entry[STOP] and is_own(entry[STOP][1]) and entry[STOP] -- nothing else would tell of that mark
  save(entry, before)
end

local stop = entry[STOP]
if stop and stop[4] and not entry[RELEASED] then
  local original = stop[2] and read_entry(stop[2])
  if not original or not (has_open_deliveries(original) or is_delivered_somewhere(original)) then
    set_free()
    return {number, 0}
  end
end

put_deliveries(false)
if ending == 'free' then
  set_free()
  return {number, 1}
end
entry[STATE], entry[LEASE], entry[ANSWER], entry[SETTLED] = 'done', 0, answer, now
if bytes > 0 and (needs_payload(entry) or delivered_payload_ms > 0) then
  if is_here then
    leave_payload(entry, bytes)
  elseif not put_payload(entry, given_payload(), bytes) then
    return {number, 2}
  end
end
if stop and stop[4] and not entry[RELEASED] then call('RPUSH', prefix .. 'followers:' .. stop[2], id) end
save(entry, before)
return {number, 1}
