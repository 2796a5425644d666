-- KEYS: key, token counter. ARGV: owner, retention of its orphan in ms, life of the counter in ms.
-- Answers {1, last token}, or as live does.
local lost = live(KEYS[1], ARGV[1], tonumber(ARGV[2]))
if lost then
  return lost
end
local last, refused = mint(KEYS[2], tonumber(ARGV[3]))
if not last then
  return refused
end
return {1, last}
