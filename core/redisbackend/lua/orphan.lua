-- KEYS: key. ARGV: owner, retention of its orphan in ms, channel, message. Answers {1} orphaned, or as
-- own does. What is left of an orphan is not shortened. Each success writes: WAIT covers what its
-- connection wrote, and nothing else.
local lost = own(KEYS[1], ARGV[1])
if lost then
  return lost
end
redis.call('PEXPIRE', KEYS[1], math.min(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
tell(ARGV[3], ARGV[4])
return {1}
