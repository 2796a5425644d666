-- KEYS: key. ARGV: owner, retention of its orphan in ms, PX in ms: TTL and retention. Answers {1}
-- extended, or as live does. A lease is never shortened.
local lost, left = live(KEYS[1], ARGV[1], tonumber(ARGV[2]))
if lost then
  return lost
end
if left >= 0 and left < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {1}
