-- KEYS: key, fence. ARGV: owner, TTL in ms, life of the fence counter in ms. Answers {1, last token} granted, {2, owner, PTTL} taken,
-- {3, seal, PTTL} sealed.
-- A token is 16 digits long: Lua's own n..'' keeps 14 of them, Redis all, but it takes time to write them.
local call, pcall = redis.call, redis.pcall
local set = pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not set or set.err then
  local value = call('GET', KEYS[1])
  if not value then
    return set -- out of memory, for example: what is there can be answered nevertheless
  end
  if value ~= ARGV[1] then
    local left = call('PTTL', KEYS[1])
    if string.byte(value, 1) == 0 then
      return {3, value, left}
    end
    return {2, value, left}
  end
  call('PEXPIRE', KEYS[1], ARGV[2]) -- ours already: a try whose reply was lost
  local fence = call('GET', KEYS[2])
  if tonumber(fence or 0) >= block then
    return {1, fence}
  end
end

-- The larger of counter and clock: the counter may be forgotten when the clock has passed it, and a replica that
-- lags behind does not repeat a token after a fail-over.
time = time or call('TIME')
local last = time[1] .. string.sub('00000' .. time[2], -6)
local before = pcall('SET', KEYS[2], last, 'PX', ARGV[3], 'GET')
if type(before) == 'table' then -- before Redis 6.2 it cannot do both at once
  before = pcall('GET', KEYS[2])
  if type(before) ~= 'table' then
    call('SET', KEYS[2], last, 'PX', ARGV[3])
  end
end
if before then
  local fence = type(before) == 'string' and tonumber(before)
  if not fence then -- somebody has put something else there
    call('DEL', KEYS[1])
    if type(before) == 'table' then
      return before
    end
    call('SET', KEYS[2], before)
    return redis.error_reply('ERR the fence counter ' .. KEYS[2] .. ' is not a number')
  end
  local ahead = fence + block - tonumber(last)
  if ahead > 0 then -- this lease's tokens would not all be new
    last = string.format('%.0f', fence + block)
    call('SET', KEYS[2], last, 'PX', string.format('%.0f', ARGV[3] + math.ceil(ahead / 1000)))
  end
end
return {1, last}
