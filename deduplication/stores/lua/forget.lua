-- Drops every name as if it had never been, whoever holds it.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns how many of the names were known.

local forgotten = 0
for _, name in ipairs(request.names) do
  if next(read(name)) then forgotten = forgotten + 1 end
  redis.call('DEL', KEYS[name.detail])
  if name.done then
    redis.call('DEL', KEYS[name.decides])
  else
    redis.call('SREM', KEYS[name.decides], name.member)
  end
  if name.history then redis.call('SREM', KEYS[name.history], name.member) end
end
return forgotten
