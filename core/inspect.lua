-- KEYS: key, fence. Answers {2, owner, PTTL, first token} held, {3, seal, PTTL} sealed, {4} free.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
local left = redis.call('PTTL', KEYS[1])
if string.byte(value, 1) == 0 then
  return {3, value, left}
end
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
return {2, value, left, string.format('%.0f', math.max(fence - block + 1, 0))}
