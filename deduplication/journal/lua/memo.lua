-- A text under a name, for what is kept beside the entries: reads it, or changes it where it is still as it was.
-- Follows entry.lua.
--
-- ARGV[3]  {name}, or {name, before, after}; before false: nothing stood there
-- Returns {0, memo or false}, or {0, 1 if it was changed, else 0}

local refused = refusal()
if refused then return refused end

local name, before, after = unpack(request)
local key = prefix .. 'memos'
local memo = call('HGET', key, name)
if #request == 1 then return {0, memo} end
if memo ~= before then return {0, 0} end
call('HSET', key, name, after)
return {0, 1}
