-- KEYS: key. ARGV: owner, channel or "", message, the set of waiters, "1" if somebody listened to the
-- last release: then the message names one of them, by chance, who goes first.
-- Answers how many listen, or -1 if that is not known: without an array, which would take a fifth of the
-- time. If some of them wait, it forgets that and answers {1, waiters}. If the owner does not hold the
-- key, it answers as own does. An owner also releases its own orphan.
local value = redis.call('GET', KEYS[1])
if value ~= ARGV[1] then
  return not value and {4} or {string.byte(value, 1) == 0 and 3 or 2, value}
end
redis.call('DEL', KEYS[1])
local message, waiters = ARGV[3], nil
if ARGV[5] == '1' then
  waiters = redis.pcall('SPOP', ARGV[4], 100) -- an error has no elements
  if #waiters > 0 then
    message = message .. ' ' .. waiters[redis.call('TIME')[2] % #waiters + 1]
  end
end
local heard = tell(ARGV[2], message)
if heard <= 0 then
  return heard
end
waiters = waiters or redis.pcall('SPOP', ARGV[4], 100)
return #waiters > 0 and {1, waiters} or heard
