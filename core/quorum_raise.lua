-- KEYS: key, fence. ARGV: owner, last token, life of the fence counter in ms. Answers {1} the counter is there now,
-- {4} we do not hold the key any more, or the counter is beyond it.
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
if redis.call('GET', KEYS[1]) ~= ARGV[1] or fence > tonumber(ARGV[2]) then
  return {4}
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', string.format('%.0f', math.max(redis.call('PTTL', KEYS[2]), tonumber(ARGV[3]))))
return {1}
