-- KEYS: key, fence. ARGV: channel, life of the fence counter in ms. Answers {1} unsealed, {4} was not sealed.
local value = redis.call('GET', KEYS[1])
if not value or string.byte(value, 1) ~= 0 then
  return {4}
end
-- Later tokens stay larger than the seal's, as long as the seal would have lasted.
local sealed = tonumber(string.match(string.sub(value, 2), '^(%d+):') or '0')
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
local left = redis.call('PTTL', KEYS[1])
local life = math.max(left, redis.call('PTTL', KEYS[2]), tonumber(ARGV[2]))
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], string.format('%.0f', math.max(fence, sealed)), 'PX', string.format('%.0f', life))
tell(ARGV[1])
return {1}
