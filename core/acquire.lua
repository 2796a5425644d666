-- KEYS: key, fence. ARGV: owner, TTL in ms, tokens reserved per lease, life of the fence counter beyond the lease in ms.
-- Answers {1, first token} granted, {2, owner, PTTL} taken, {3, seal, PTTL} sealed.
-- Redis passes whole numbers on exactly, both to commands and as an answer, but Lua's own n..'' keeps 14 digits of a token.
local call = redis.call
local value = call('GET', KEYS[1])
if value and value ~= ARGV[1] then
  local left = call('PTTL', KEYS[1])
  if string.byte(value, 1) == 0 then
    return {3, value, left}
  end
  return {2, value, left}
end

local block = tonumber(ARGV[3])
local fence = tonumber(call('GET', KEYS[2]) or 0)
if value and fence >= block then -- ours already: a try whose reply was lost
  call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, fence - block + 1}
end

-- The larger of counter and clock: the counter may be forgotten when the clock has passed it, and a replica that
-- lags behind does not repeat a token after a fail-over.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local token = math.max(fence + 1, now)
local last = token + block - 1
call('SET', KEYS[2], last, 'PX', ARGV[2] + ARGV[4] + math.ceil((last - now) / 1000))
call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, token}
