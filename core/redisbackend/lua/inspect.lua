-- KEYS: key. Answers {2, owner, PTTL} held or orphaned, {3, seal, PTTL} sealed, {4} free. It only
-- reads.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
return {string.byte(value, 1) == 0 and 3 or 2, value, redis.call('PTTL', KEYS[1])}
