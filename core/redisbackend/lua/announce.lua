-- announce notes that a process waits for the key that is held. An error is ignored: it is about turns only.
local function announce(waiters, waiter, life)
  redis.pcall('SADD', waiters, waiter)
  redis.pcall('PEXPIRE', waiters, life)
end

