-- KEYS: key, fence. ARGV: owner, channel, seal, its PX in ms, its token, life of the fence counter in ms, and for the repair
-- of a seal that is on a minority: the counter of the lease in whose name it is done, else "".
-- Answers {1} sealed, {2, value} another's, {3, seal} sealed with something else, {4} gone, or not ours as it was.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
if value == ARGV[3] then
  return {1}
end
if value ~= ARGV[1] then
  return {string.byte(value, 1) == 0 and 3 or 2, value}
end
local before = redis.call('GET', KEYS[2])
if ARGV[7] ~= '' then
  if before ~= ARGV[7] then
    return {4}
  end
elseif tonumber(before or '0') >= tonumber(ARGV[5]) + block then -- unsealed already, while this copy was on its way
  return {4}
end
local life = string.format('%.0f', math.max(redis.call('PTTL', KEYS[2]), tonumber(ARGV[6])))
redis.call('DEL', KEYS[1]) -- first: a script that has deleted may write when memory is short
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[2], string.format('%.0f', math.max(tonumber(before or '0'), tonumber(ARGV[5]))), 'PX', life)
tell(ARGV[2])
return {1}
