-- KEYS: key. ARGV: owner, channel, message, seal, retention in ms. Answers {1} sealed, or as own does.
-- An owner also seals over its own orphan.
local lost = own(KEYS[1], ARGV[1])
if lost then
  if lost[2] == ARGV[4] then
    return {1} -- a try whose reply was lost
  end
  return lost
end
-- DEL comes first: a script that has deleted may write when memory is short.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
tell(ARGV[2], ARGV[3])
return {1}
