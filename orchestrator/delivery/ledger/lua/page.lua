-- A page of members over several indexes at one moment: a record that changes its index between two pages is neither
-- missed nor met twice.
--
-- KEYS     indexes (ZSET of members, by name)
-- ARGV[1], ARGV[2]  the first and the last member, as ZRANGEBYLEX takes them
-- ARGV[3]  how many at most
--
-- Returns the members in their order.

local members, limit = {}, tonumber(ARGV[3])
for _, key in ipairs(KEYS) do
  for _, member in ipairs(redis.call('ZRANGEBYLEX', key, ARGV[1], ARGV[2], 'LIMIT', 0, limit)) do
    members[#members + 1] = member
  end
end
table.sort(members)
while #members > limit do members[#members] = nil end
return members
