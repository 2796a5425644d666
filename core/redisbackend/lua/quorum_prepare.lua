-- ARGV: owner, ballot, life of the promise in ms, for how long the node abstains in ms, "1" if the
-- caller must hold the key. Answers what the node accepted.
if owner and owner ~= me then
  return answer(HELD)
end
if ARGV[5] == '1' and not holds() then
  return answer(FREE)
end
if owner ~= me and abstains(ARGV[4]) > 0 then
  return answer(ABSTAINS)
end
if not promised(tonumber(ARGV[2])) then
  return answer(REFUSED)
end
promise_to(tonumber(ARGV[2]), me, ARGV[3])
return answer(YES, true)
