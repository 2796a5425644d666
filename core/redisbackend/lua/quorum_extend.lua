-- ARGV: owner, TTL in ms, ballot, life of the promise in ms, for how long the node abstains in ms,
-- the record of an orphan or "", "1" to take the key again where the lease was lost: the caller
-- holds it on a majority.
local void = not closed()
local mine = begun() == me
if owner ~= me then
  if owner then
    return answer(HELD)
  end
  if not (void or mine) then
    return answer(SEALED)
  end
  if ARGV[7] ~= '1' then
    return answer(FREE)
  end
  if abstains(ARGV[5]) > 0 then
    return answer(ABSTAINS)
  end
  owner = me
  call('SET', KEYS[1], me, 'PX', ARGV[2])
elseif call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  call('PEXPIRE', KEYS[1], ARGV[2])
end
local b = tonumber(ARGV[3])
if ballot < b then
  promise_to(b, me, ARGV[4])
else
  call('PEXPIRE', KEYS[2], ARGV[4])
end
if ARGV[6] ~= '' then
  local retention = tonumber(string.match(ARGV[6], '^B(%d+):'))
  local px = tonumber(ARGV[2]) + retention
  if mine and remaining() < px then
    accept(at, step, value, px)
  elseif not mine and void and at < b then
    accept(b, 0, ARGV[6], px)
  end
end
return answer(YES)
