-- KEYS: key. ARGV: owner, channel or "", message, the set of waiters, "1" if somebody listened to the
-- last release: then the message names one of them, by chance, who goes first.
-- Answers 0 if nobody listens, or -1 if that is not known: without an array, which would take a fifth of
-- the time. If somebody listens, it forgets the waiters and answers {1, waiters}. Otherwise it answers
-- as own does. An owner also releases its own orphan.
local value = redis.call('GET', KEYS[1])
if value ~= ARGV[1] then
  return not value and {4} or {string.byte(value, 1) == 0 and 3 or 2, value}
end
redis.call('DEL', KEYS[1])
local function take_waiters()
  local taken = redis.pcall('SPOP', ARGV[4], 100)
  return taken.err and {} or taken
end
local message, waiters = ARGV[3], nil
if ARGV[5] == '1' then
  waiters = take_waiters()
  local first = waiters[redis.call('TIME')[2] % math.max(#waiters, 1) + 1]
  message = first and message .. ' ' .. first or message
end
local heard = tell(ARGV[2], message)
return heard <= 0 and heard or {1, waiters or take_waiters()}
