-- KEYS: key. ARGV: owner, channel or "", message. Answers how many subscribers heard of the release, or -1,
-- without an array, which would take a fifth of the time; otherwise as own does. An owner also releases
-- its own orphan.
local value = redis.call('GET', KEYS[1])
if value ~= ARGV[1] then
  return not value and {4} or {string.byte(value, 1) == 0 and 3 or 2, value}
end
redis.call('DEL', KEYS[1])
return tell(ARGV[2], ARGV[3])
