-- KEYS: key. ARGV: owner, channel, message, seal, retention in ms. Answers {1} sealed, or as own does.
-- An owner also seals over its own orphan.
local lost = own(KEYS[1], ARGV[1])
if lost then
  if lost[2] == ARGV[4] then
    -- A try whose reply was lost. It writes: WAIT covers what its connection wrote, and nothing
    -- else.
    redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[5])))
    return {1}
  end
  return lost
end
-- DEL comes first: a script that has deleted may write when memory is short.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
tell(ARGV[2], ARGV[3])
return {1}
