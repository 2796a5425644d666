-- KEYS: key. ARGV: owner, retention of its orphan in ms, PX in ms: TTL and retention. Answers {1}
-- extended, or as live does. A lease is never shortened. Each success writes: WAIT covers what its
-- connection wrote, and nothing else.
local lost, left = live(KEYS[1], ARGV[1], tonumber(ARGV[2]))
if lost then
  return lost
end
redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[3])))
return {1}
