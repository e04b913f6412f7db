-- Takes over what a server decided while it was alone. Each name carries its fingerprint, its record, and how much is
-- left of its time (kept_ms) and its lease (lease_ms). done > pending > absent; merging twice changes nothing.
-- Follows records.lua, which says what KEYS and ARGV hold. request.hold_ms keeps a memory that is being restored closed
-- for that much longer. Returns how many names changed.

local function outlives(name, existing)
  local until_ms = now_ms + name.lease_ms
  if existing.lease_until_ms ~= until_ms then return existing.lease_until_ms < until_ms end
  return existing.owner < name.record.owner
end

local merged, highest = 0, 0
for _, name in ipairs(request.names) do
  local records = read(name)
  local existing, mark = records[field_of(name)], records['-']
  local marked_by_others = mark and mark.state == 'done' and not mark.item and not name.needs_agreement
  highest = math.max(highest, name.record.fence or 0)
  if marked_by_others or (existing and existing.state == 'done') then
    -- nothing to add: another program's mark stands for every fingerprint
  elseif name.record.state == 'done' then
    save_done(name, name.record)
    merged = merged + 1
  elseif not existing or existing.state == 'free' or outlives(name, existing) then
    save_pending(name, name.record, name.lease_ms)
    merged = merged + 1
  end
end

if highest > tonumber(redis.call('GET', KEYS[1]) or 0) then redis.call('SET', KEYS[1], highest) end
if request.hold_ms then redis.call('HSET', KEYS[2], 'opens_ms', now_ms + request.hold_ms) end
return merged
