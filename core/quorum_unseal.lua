-- KEYS: key, fence. ARGV: channel, life of the fence counter in ms, the seal's token, tokens reserved per lease.
-- Frees a key sealed with that token or a smaller one, and moves the counter beyond the seal's lease, also where there is no
-- seal: what is left of it on other nodes is then known to be old. Answers {1}.
local value = redis.call('GET', KEYS[1])
local token = tonumber(ARGV[3])
if value and string.byte(value, 1) == 0 and tonumber(string.match(string.sub(value, 2), '^(%d+):') or '0') <= token then
  redis.call('DEL', KEYS[1])
  tell(ARGV[1])
end
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
if fence == 0 then -- forgotten: the time has taken over, and a seal that was left behind must not turn it back
  local time = redis.call('TIME')
  fence = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
fence = math.max(fence, token + tonumber(ARGV[4]) - 1) + 1
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', math.max(redis.call('PTTL', KEYS[2]), tonumber(ARGV[2]))))
return {1}
