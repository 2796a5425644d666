-- announce notes that a process waits for the key that is held. An error is ignored: it is about turns only.
local function announce(waiters, waiter, life)
  if type(redis.pcall('SADD', waiters, waiter)) == 'number' then
    redis.pcall('PEXPIRE', waiters, life)
  end
end

