-- The state of a key on one node of a quorum, and the rules that every script uses. See quorum.go.
-- KEYS: the lease, the promise "ballot by", the accepted "ballot step value" or "ballot step @end
-- value". ARGV[1]: who asks.
local YES, HELD, SEALED, FREE, CLOCK, ABSTAINS, REFUSED = 1, 2, 3, 4, 6, 7, 8
local VOID = 'V'
local call, pcall = redis.call, redis.pcall
local me = ARGV[1]

-- Not MGET: it takes a key of another type for one that is not there.
local owner, promise, accepted = call('GET', KEYS[1]), call('GET', KEYS[2]), call('GET', KEYS[3])
local ballot, by = 0, ''
if promise then
  local number, from = string.match(promise, '^(%d+) ()')
  ballot, by = tonumber(number), string.sub(promise, from)
end

-- Lua's own n..'' loses digits beyond 14.
local function text(n)
  return string.format('%.0f', n)
end

local function now()
  time = time or call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- over is set if the value replaced VOID and ends sooner: then VOID lasts on. ends is in ms.
local at, step, value, over, ends = 0, 0, false, false, nil
if accepted then
  local number, digit, from = string.match(accepted, '^(%d+) (%d) ()')
  at, step, value = tonumber(number), tonumber(digit), string.sub(accepted, from)
  over = value == VOID
  local inner, after = string.match(value, '^@(%d+) ()')
  if inner then
    over, ends, value = true, tonumber(inner), string.sub(value, after)
    if ends <= now() / 1000 then
      ends, value = nil, VOID
    end
    accepted = number .. ' ' .. digit .. ' ' .. value
  end
  if at > ballot then
    ballot, by = at, ''
  end
end

-- begun returns the owner and the retention of an orphan's record, or nil.
local function begun()
  if value and string.byte(value, 1) == 66 then
    local retention, from = string.match(value, '^B(%d+):()')
    return string.sub(value, from), tonumber(retention)
  end
end

-- closed reports whether the accepted value keeps others out.
local function closed()
  return value and value ~= VOID
end

-- holds reports whether the key is still the caller's here: its lease, its orphan, or a value that
-- it wrote, if nobody else was promised anything since.
local function holds()
  return owner == me or not owner and value and (by == me or begun() == me)
end

-- promised reports whether the caller may act under ballot b. A number is promised once.
local function promised(b)
  return ballot < b or ballot == b and by == me
end

local function promise_to(b, who, life)
  ballot, by = b, who
  call('SET', KEYS[2], text(b) .. ' ' .. who, 'PX', life)
end

-- abstains returns for how many ms the node grants nothing because it started less than guard ms
-- ago: it may have lost what it granted before. LASTSAVE costs nothing and is never earlier than the
-- start. A node whose ACL forbids INFO does not abstain.
local function abstains(guard)
  guard = tonumber(guard)
  if guard <= 0 then
    return 0
  end
  local saved = pcall('LASTSAVE')
  if type(saved) == 'number' and (now() / 1000000 - saved - 1) * 1000 >= guard then
    return 0
  end
  local info = pcall('INFO', 'server')
  -- INFO counts whole seconds. They are negative if the clock was set back.
  local up = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)'))
  return up and math.max(guard - (up - 1) * 1000, 0) or 0
end

-- remaining returns for how many ms the accepted value lasts.
local function remaining()
  if not accepted then
    return 0
  end
  return ends and math.ceil(ends - now() / 1000) or call('PTTL', KEYS[3])
end

-- accept stores a value for px ms. It does not end a VOID that lasts longer, for a node that was away
-- may have what that voids.
local function accept(b, s, what, px)
  local void = over and call('PTTL', KEYS[3]) or 0
  accepted, value, ends = text(b) .. ' ' .. text(s) .. ' ' .. what, what, nil
  local stored = accepted
  if void > px then
    if what ~= VOID then
      ends = now() / 1000 + px
      stored = text(b) .. ' ' .. text(s) .. ' @' .. text(ends) .. ' ' .. what
    end
    px = void
  end
  call('SET', KEYS[3], stored, 'PX', text(px))
end

-- answer tells the state. Long values are cut unless the caller needs them. What is usual is answered
-- without it, and shorter: that is a twentieth of a lock's time in Redis.
local function answer(status, whole, extra)
  local what = accepted or ''
  if not whole then
    what = string.sub(what, 1, 512)
  end
  local lease = owner and call('PTTL', KEYS[1]) or 0
  return {status, text(ballot), extra or '', by, owner or '', lease, what, remaining()}
end

