-- KEYS: key, its waiters. ARGV: waiter, life of the waiters in ms. Answers as inspect does. If the key
-- is held, it notes the waiter.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
local sealed = string.byte(value, 1) == 0
if not sealed then
  announce(KEYS[2], ARGV[1], ARGV[2])
end
return {sealed and 3 or 2, value, redis.call('PTTL', KEYS[1])}
