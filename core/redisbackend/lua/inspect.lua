-- KEYS: key. Answers {2, owner, PTTL} held or orphaned, {3, seal, PTTL} sealed, {4} free. It changes
-- nothing.
local value = redis.call('GET', KEYS[1])
if not value then
  -- There is nothing to delete. A replica refuses it: that its copy has no key does not say "free".
  local none = redis.pcall('DEL', KEYS[1])
  if type(none) == 'table' and string.find(none.err, 'READONLY', 1, true) then
    return none
  end
  return {4}
end
return {string.byte(value, 1) == 0 and 3 or 2, value, redis.call('PTTL', KEYS[1])}
