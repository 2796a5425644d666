-- KEYS: key. ARGV: owner, channel, seal, retention in ms. Answers {1} sealed, {2, value} another's, {3, seal} sealed
-- with something else, {4} gone.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
if value == ARGV[1] then
  redis.call('DEL', KEYS[1]) -- first: a script that has deleted may write when memory is short
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  tell(ARGV[2])
  return {1}
end
if value == ARGV[3] then -- a try whose reply was lost
  return {1}
end
if string.byte(value, 1) == 0 then
  return {3, value}
end
return {2, value}
