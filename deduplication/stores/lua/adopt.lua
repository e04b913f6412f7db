-- Which memory is this? One without an id, or with a fencing number below one that it gave out before, has forgotten
-- something: it gets a new id (request.new_id) by which every server notices, and stays closed for request.hold_ms.
-- request.memory and request.seen_fence are what the server knows; absent on a server's very first start.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns the id.

local id = redis.call('HGET', KEYS[2], 'id')
local went_back = tonumber(redis.call('GET', KEYS[1]) or 0) < request.seen_fence
if went_back then redis.call('SET', KEYS[1], request.seen_fence) end
if not id or (went_back and id == request.memory) then -- under another id, its loss is known already
  id = request.new_id
  redis.call('HSET', KEYS[2], 'id', id)
  if request.memory then redis.call('HSET', KEYS[2], 'opens_ms', now_ms + request.hold_ms) end
end
return id
