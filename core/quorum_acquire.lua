-- KEYS: key, fence. ARGV: owner, TTL in ms, tokens reserved per lease, life of the fence counter beyond the lease in ms,
-- the caller's time in µs, how far that may be from this node's in µs.
-- Answers {1, first token, counter before} granted ("" for no counter, "?" for a lease of ours from a try before),
-- {2, owner, PTTL} taken, {3, seal, PTTL} sealed, {6, µs} the caller's clock is that far off.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if string.byte(value, 1) == 0 then
    return {3, value, left}
  end
  return {2, value, left}
end

local block = tonumber(ARGV[3])
local before = redis.call('GET', KEYS[2])
if value and before then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, string.format('%.0f', tonumber(before) - block + 1), '?'}
end

-- All nodes without a counter answer the same, the caller's time, so that a new key needs one round trip.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = tonumber(ARGV[5])
if before then
  token = tonumber(before) + 1
elseif math.abs(token - now) > tonumber(ARGV[6]) then
  return {6, string.format('%.0f', token - now)}
end
local last = token + block - 1
local life = tonumber(ARGV[2]) + tonumber(ARGV[4]) + math.max(0, math.ceil((last - now) / 1000))
redis.call('SET', KEYS[2], string.format('%.0f', last), 'PX', string.format('%.0f', life))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, string.format('%.0f', token), before or ''}
