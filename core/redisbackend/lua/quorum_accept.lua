-- ARGV: owner, ballot, step, value, its PX in ms, life of the promise in ms, mode, for how long the
-- node abstains in ms, channel. The modes are: "keep" beside the caller's lease, "end" instead of the
-- caller's lease, "repair" where nobody else holds the key, "heal" for a value that a majority has.
local b, s, px, mode = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5]), ARGV[7]
if value == ARGV[4] and at == b and step == s then
  if remaining() < px and mode ~= 'heal' then
    accept(b, s, value, px)
  end
  return answer(YES)
end
-- VOID is written by many.
local same = value == ARGV[4] and value ~= VOID and 'same' or ''
if owner and owner ~= me then
  return answer(HELD, false, same)
end
if mode == 'end' and not holds() then
  return answer(closed() and SEALED or FREE, false, same)
end
if owner ~= me and mode ~= 'heal' and mode ~= 'end' and abstains(ARGV[8]) > 0 then
  return answer(ABSTAINS)
end
-- A late copy of an earlier step must not undo a later one.
if value and (at > b or at == b and step >= s) then
  return answer(REFUSED, false, same)
end
if mode ~= 'heal' and not promised(b) then
  return answer(REFUSED, false, same)
end
if mode ~= 'keep' then
  -- First: a script that has deleted may write when memory is short.
  call('DEL', KEYS[1])
  owner = false
end
accept(b, s, ARGV[4], px)
if ballot <= b then
  promise_to(b, me, ARGV[6])
end
if mode ~= 'keep' then
  tell(ARGV[9])
end
return answer(YES)
