-- KEYS: key. ARGV: owner, TTL in ms. Answers {1, PTTL} extended, {2, value} another's, {4} gone.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
if value ~= ARGV[1] then
  return {2, value}
end
local left = redis.call('PTTL', KEYS[1])
if left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {1}
