-- KEYS     indexes (ZSET)
-- Returns how many members each of them has.

local counts = {}
for i, key in ipairs(KEYS) do counts[i] = redis.call('ZCARD', key) end
return counts
