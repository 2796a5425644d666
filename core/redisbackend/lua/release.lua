-- KEYS: key, its waiters. ARGV: owner, channel or "", message. Answers 0 if nobody waits, or -1, without an array,
-- which would take a fifth of the time; {1, waiters} if somebody does; otherwise as own does. An owner
-- also releases its own orphan.
local value = redis.call('GET', KEYS[1])
if value ~= ARGV[1] then
  return not value and {4} or {string.byte(value, 1) == 0 and 3 or 2, value}
end
redis.call('DEL', KEYS[1])
local heard = tell(ARGV[2], ARGV[3])
if heard <= 0 then
  return heard -- who waits listens
end
local waiters = redis.pcall('SPOP', KEYS[2], 100)
return type(waiters) == 'table' and #waiters > 0 and {1, waiters} or 0
