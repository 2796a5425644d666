-- tell wakes the waiters of a key and returns how many subscribers heard it, or -1. A channel that
-- ends in ":s" is a sharded one (Redis 7), or a plain one on an older Redis. An error is ignored:
-- waiters also look for themselves.
local function tell(channel, message)
  message = message or ''
  if channel == '' then
    return -1
  end
  local heard
  if string.sub(channel, -2) == ':s' then
    heard = redis.pcall('SPUBLISH', channel, message)
  end
  if type(heard) ~= 'number' then
    heard = redis.pcall('PUBLISH', channel, message)
  end
  return type(heard) == 'number' and heard or -1
end

