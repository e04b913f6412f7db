-- Drops every name as if it had never been, whoever holds it, and tells the other servers.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns how many of the names were known.

local forgotten, labels = 0, {}
for _, name in ipairs(request.names) do
  if next(read(name)) then forgotten = forgotten + 1 end
  labels[#labels + 1] = name.label
  redis.call('DEL', KEYS[name.detail])
  if name.done then
    redis.call('DEL', KEYS[name.decides])
  else
    redis.call('SREM', KEYS[name.decides], name.member)
  end
  if name.history then redis.call('SREM', KEYS[name.history], name.member) end
end
if #labels > 0 then
  local fence = redis.call('GET', KEYS[1]) or '0'
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'labels', cjson.encode(labels), 'fence', fence)
end
return forgotten
