-- Starts the lease anew on every name the owner still holds.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns 1, or 0 if the owner no longer holds them all.

local complete = 1
for _, name in ipairs(request.names) do
  local record = mine(name, read(name))
  if record and record.state == 'pending' then
    save_pending(name, record, request.lease_ms)
  else
    complete = 0
  end
end
return complete
