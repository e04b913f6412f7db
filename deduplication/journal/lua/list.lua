-- A page of what waits or is dead, from the indexes of one destination or of all. Follows entry.lua.
--
-- ARGV[3]  {"due" or "dead", limit, destination or false, {score, entry, destination} after which it begins or false}
-- Returns {0, score, id, destination, entry or "" if that is gone...}: due by the next try, dead the newest first. Fewer
-- than the limit: these were the last.

local refused = refusal()
if refused then return refused end

local index, limit, only, after = unpack(request)
local is_newest_first = index == 'dead'

local function comes_first(one, other)
  for i = 1, 3 do
    if one[i] ~= other[i] then return (one[i] < other[i]) ~= is_newest_first end
  end
  return false
end

-- Several may have the score at which it begins, so it is read from there until there are enough past it.
local found = {}
local function read(key, destination)
  local from, left, page = 0, limit, nil
  repeat
    if is_newest_first then
      page = call('ZREVRANGEBYSCORE', key, after and after[1] or '+inf', '-inf', 'WITHSCORES', 'LIMIT', from, limit)
    else
      page = call('ZRANGEBYSCORE', key, after and after[1] or '-inf', '+inf', 'WITHSCORES', 'LIMIT', from, limit)
    end
    for i = 1, #page, 2 do
      local position = {tonumber(page[i + 1]), page[i], destination}
      if not after or comes_first(after, position) then found[#found + 1], left = position, left - 1 end
    end
    from = from + limit
  until left <= 0 or #page < 2 * limit
end
for _, destination in ipairs(only and {only} or call('SMEMBERS', prefix .. 'destinations')) do
  local keys = index == 'dead' and {prefix .. 'dead:' .. destination} or due_indexes(destination)
  for _, key in ipairs(keys) do read(key, destination) end
end
table.sort(found, comes_first)

local answer = {0}
for i = 1, math.min(limit, #found) do
  local score, id, destination = unpack(found[i])
  for _, each in ipairs({score, id, destination, call('GET', prefix .. 'entry:' .. id) or ''}) do
    answer[#answer + 1] = each
  end
end
return answer
