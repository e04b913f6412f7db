-- Gives every name the owner holds back, with request.retries_left (absent = not counted). With 0 left the item's own
-- names are done (a dead letter) and the shared ones are free.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns 1, or 0 if the owner no longer held them all.

local complete = 1
for _, name in ipairs(request.names) do
  local record = mine(name, read(name))
  if record and record.state == 'pending' then
    local left = request.retries_left
    if record.retries_left then left = math.min(left or record.retries_left, record.retries_left) end
    record.retries_left = left
    if left == 0 and name.own then save_done(name, record) else save_free(name, record) end
  else
    complete = 0
  end
end
return complete
