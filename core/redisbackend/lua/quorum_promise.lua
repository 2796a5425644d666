-- KEYS: lease, promise. ARGV: owner, t. Answers {YES, promise}, {HELD, owner}, {FREE}, {CLOCK, µs ahead}.
if owner ~= me then -- rule 3
  return owner and {HELD, owner} or {FREE}
end
local p, t = promised(), tonumber(ARGV[2])
if p < t then
  if t > now() + T then -- rule 3
    return {CLOCK, text(t - now())}
  end
  promise(t)
  p = t
end
return {YES, text(p)} -- rule 3: also if the promise was larger
