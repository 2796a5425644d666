-- mint reserves a block of fencing tokens for the key of a counter and returns the last one, or an
-- error. life is how long the counter stays, in ms. The last token is the larger of counter and
-- clock: the counter may expire once the clock has passed it, and a replica that lags behind does
-- not repeat a token after a fail-over. Numbers are formatted: Lua's own conversion loses digits.
local function mint(counter, life)
  local time = redis.call('TIME')
  local last = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local before = redis.pcall('GET', counter)
  if type(before) == 'table' then
    return nil, before
  end
  if before and not tonumber(before) then
    return nil, redis.error_reply('ERR the token counter ' .. counter .. ' is not a number')
  end
  local ahead = before and tonumber(before) + block - last or 0
  if ahead > 0 then
    last = last + ahead
    life = life + math.ceil(ahead / 1000)
  end
  last = string.format('%.0f', last)
  local set = redis.pcall('SET', counter, last, 'PX', string.format('%.0f', math.max(life, redis.call('PTTL', counter))))
  if type(set) == 'table' and set.err then
    return nil, set
  end
  return last
end

