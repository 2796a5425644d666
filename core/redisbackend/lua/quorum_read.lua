-- KEYS: lease, promise. ARGV: "", up to which age in ms the node grants nothing. Answers {HELD, owner,
-- promise, PTTL}, {FREE}, {ABSTAINS, ms}. It changes nothing.
if owner then
  return {HELD, owner, text(promised()), call('PTTL', KEYS[1])}
end
local wait = abstains(ARGV[2])
return wait == 0 and {FREE} or {ABSTAINS, text(wait)}
