-- Pending becomes done on every name the owner holds, and on names that were forgotten meanwhile. A name that is only
-- leased (a lock) is given back: once completed it blocks nobody.
-- Follows records.lua, which says what KEYS and ARGV hold. Returns 1, or 0 if another owner has a name now.

local complete = 1
for _, name in ipairs(request.names) do
  local record = read(name)[field_of(name)] or fresh(name)
  if record.owner ~= request.owner then
    complete = 0
  elseif name.leased then
    record.retries_left = nil
    save_free(name, record)
  elseif record.state ~= 'done' then
    save_done(name, record)
  end
end
return complete
