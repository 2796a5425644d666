-- KEYS: key, fence. ARGV: owner, TTL in ms, life of the fence counter in ms, the caller's time in µs, how far that may be from this
-- node's in µs, for how many ms from its start the node abstains, in which run it does not, "1" to be told the run.
-- Answers {1, first token, counter before, young, run} granted ("" for no counter, "?" for a lease of ours from a try before),
-- {2, owner, PTTL, young, run} taken, {3, seal, PTTL, young, run} sealed, {6, µs} the caller's clock is that far off,
-- {7, ms, "", young, run} the node abstains. young is for how many s it has run if it has just started, run its id where it was looked up.
time = time or redis.call('TIME')

-- A node that started less than a TTL ago may have lost what it granted before: two could hold the key. LASTSAVE, which costs
-- nothing, is never earlier than the start. Where neither may be read, the node does not abstain.
local young, run, abstains = '', '', 0
local saved = redis.pcall('LASTSAVE')
if type(saved) == 'number' and (ARGV[8] == '1' or (tonumber(time[1]) - saved - 1) * 1000 < tonumber(ARGV[6])) then
  local info = redis.pcall('INFO', 'server')
  if type(info) == 'string' then
    run = string.match(info, 'run_id:(%w+)') or ''
    local up = tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)')) -- negative if the clock was set back
    if up then
      abstains = tonumber(ARGV[6]) - (up - 1) * 1000 -- it counts whole seconds
      if abstains > 0 then
        young = string.format('%.0f', up)
      end
    end
  end
end

local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if string.byte(value, 1) == 0 then
    return {3, value, left, young, run}
  end
  return {2, value, left, young, run}
end

local before = redis.call('GET', KEYS[2])
if value and before then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, string.format('%.0f', tonumber(before) - block + 1), '?', young, run}
end

if young ~= '' and run ~= ARGV[7] then
  return {7, abstains, '', young, run}
end

-- All nodes without a counter answer the same, the caller's time, so that a new key needs one round trip.
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = tonumber(ARGV[4])
if before then
  token = tonumber(before) + 1
elseif math.abs(token - now) > tonumber(ARGV[5]) then
  return {6, string.format('%.0f', token - now)}
end
local last = token + block - 1
local life = tonumber(ARGV[3]) + math.max(0, math.ceil((last - now) / 1000))
redis.call('SET', KEYS[2], string.format('%.0f', last), 'PX', string.format('%.0f', life))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, string.format('%.0f', token), before or '', young, run}
