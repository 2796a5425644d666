-- KEYS: lease. ARGV: owner, TTL in ms, "1" to take the key again, up to which age in ms the node lets
-- nobody do that. Answers 1, {HELD, owner}, {FREE}, {ABSTAINS, ms}. It leaves promises alone (rule 6).
if owner == me then
  lengthen(ARGV[2])
  return YES
end
if owner then
  return {HELD, owner}
end
if ARGV[3] ~= '1' then
  return {FREE}
end
local wait = abstains(ARGV[4]) -- rules 6 and 8
if wait ~= 0 then
  return {ABSTAINS, text(wait)}
end
call('SET', KEYS[1], me, 'PX', ARGV[2]) -- rule 6: whatever the node promised
return YES
