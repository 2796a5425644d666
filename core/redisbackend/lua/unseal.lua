-- KEYS: key, token counter. ARGV: channel, message, life of the counter in ms, the SHA-1 of the seal
-- or orphan to free, the orphan's retention in ms. A late copy of the request finds another value.
-- Answers {1} freed, {2} something else is there, {4} free.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
if redis.sha1hex(value) ~= ARGV[4] then
  return {2}
end
local left = redis.call('PTTL', KEYS[1])
if string.byte(value, 1) ~= 0 then
  if left < 0 or left > tonumber(ARGV[5]) then
    return {2}
  end
  redis.call('DEL', KEYS[1])
  tell(ARGV[1], ARGV[2])
  return {1}
end
local sealed = tonumber(string.match(string.sub(value, 2), '^(%d+):') or '0')
local counter = 0
if sealed > 0 then
  -- It is read before anything is changed: it may be another program's.
  counter = tonumber(redis.call('GET', KEYS[2]) or '0')
  if not counter then
    return redis.error_reply('ERR the token counter ' .. KEYS[2] .. ' is not a number')
  end
end
redis.call('DEL', KEYS[1])
if sealed > 0 then
  -- Later tokens stay larger than the seal's, for as long as the seal would have lasted.
  local life = math.max(left, redis.call('PTTL', KEYS[2]), tonumber(ARGV[3]))
  redis.call('SET', KEYS[2], string.format('%.0f', math.max(counter, sealed)), 'PX', string.format('%.0f', life))
end
tell(ARGV[1], ARGV[2])
return {1}
