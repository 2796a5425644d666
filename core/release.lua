-- KEYS: key. ARGV: owner, channel or "". Answers {1} released, {2, value} another's, {3, seal} sealed, {4} gone.
local value = redis.call('GET', KEYS[1])
if not value then
  return {4}
end
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  tell(ARGV[2])
  return {1}
end
if string.byte(value, 1) == 0 then
  return {3, value}
end
return {2, value}
