-- Payloads and uploads that have ended by themselves count no longer. Follows entry.lua.
--
-- ARGV[3]  {limit}
-- Returns {0, how many there were}.

local over = call('ZRANGEBYSCORE', ENDS, '-inf', now, 'LIMIT', 0, request[1])
for _, each in ipairs(over) do
  local kind, id, bytes = string.match(each, '^(%a+):(.*) (%d+)$')
  call('ZREM', ENDS, each)
  call('DEL', prefix .. kind .. ':' .. id)
  call('DECRBY', COUNTED, bytes)
  local entry = kind == 'payload' and read_entry(id)
  if entry and entry[PAYLOAD_MACHINE] == '' then
    entry[PAYLOAD_BYTES] = 0
    call('SET', prefix .. 'entry:' .. id, cmsgpack.pack(entry), 'KEEPTTL')
  end
end
return {0, #over}
