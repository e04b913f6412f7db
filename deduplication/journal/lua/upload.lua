-- The first piece of a large payload that is sent ahead of a step: its room is taken now. Follows entry.lua.
--
-- ARGV[3]  {entry, bytes (of all of it), is_forced}
-- ARGV[4]  the piece
-- Returns {0, 1}, or {0, 0} where there is no room. What no step takes up within an hour is gone.

local id, bytes, is_forced = unpack(request)
local upload = 'upload:' .. id .. ' ' .. bytes
if not call('ZSCORE', ENDS, upload) and not take_room(bytes, is_forced) then return {0, 0} end
call('ZADD', ENDS, now + HOUR_MS, upload)
call('SET', prefix .. 'upload:' .. id, ARGV[4], 'PX', HOUR_MS)
return {0, 1}
