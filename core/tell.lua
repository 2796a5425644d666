-- tell wakes who waits for the key. A channel that ends in ":s" is a sharded one (Redis 7), a plain one where there are none. Nobody
-- waits on "", and that it fails matters to nobody: waiters look for themselves too.
local function tell(channel)
  if channel == '' then
    return
  end
  if string.sub(channel, -2) == ':s' and type(redis.pcall('SPUBLISH', channel, '')) == 'number' then
    return
  end
  redis.pcall('PUBLISH', channel, '')
end

