-- What the scripts of a quorum share. The rules are those at type quorum. T (µs) and LIFE (ms) come
-- before this. KEYS: the lease, and others. ARGV[1]: the owner that asks.
local YES, HELD, FREE, CLOCK, ABSTAINS = 1, 2, 4, 6, 7
local call, pcall = redis.call, redis.pcall
local me = ARGV[1]
local owner = call('GET', KEYS[1])

-- Lua's own n..'' loses digits beyond 14, and an answer in numbers loses those beyond 53 bits.
local function text(n)
  return string.format('%.0f', n)
end

-- now returns this node's clock in µs.
local function now()
  time = time or call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function promised()
  return tonumber(call('GET', KEYS[2]) or 0)
end

-- rule 5: a promise ends LIFE after the later of its number and now.
local function promise(p)
  call('SET', KEYS[2], text(p), 'PX', text(math.ceil(math.max(p - now(), 0) / 1000) + LIFE))
end

local function lengthen(px)
  if call('PTTL', KEYS[1]) < tonumber(px) then
    call('PEXPIRE', KEYS[1], px)
  end
end

-- abstains returns for how many ms this node is still younger than guard, or -1 if it does not tell.
-- rule 8: whole seconds - 1. LASTSAVE costs nothing and is never earlier than the start.
local function abstains(guard)
  guard = tonumber(guard)
  if guard <= 0 then
    return 0
  end
  local saved = pcall('LASTSAVE')
  local age = type(saved) == 'number' and now() / 1000 - (saved + 1) * 1000
  if not age or age < guard then
    local info = pcall('INFO', 'server')
    -- The seconds are negative if the clock was set back.
    local up = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)'))
    if not up then
      return -1
    end
    age = (up - 1) * 1000
  end
  return math.max(guard - age, 0)
end

