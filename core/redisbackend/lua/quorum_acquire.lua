-- ARGV: owner, TTL in ms, life of the promise in ms, the caller's time in µs, how far that may be
-- from this node's in µs, for how many ms from its start the node abstains, the owner of an orphan
-- to adopt, "1" to be told the server's run.
local run = ''
if ARGV[8] == '1' then
  local info = pcall('INFO', 'server')
  run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
if owner == me then
  -- An earlier copy of this request. The promise stays as it is.
  if call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return answer(YES, false, run)
end
if owner then
  return answer(HELD, false, run)
end
if closed() and not (ARGV[7] ~= '' and begun() == ARGV[7]) then
  return answer(SEALED, true, run)
end
local wait = abstains(ARGV[6])
if wait > 0 then
  return answer(ABSTAINS, false, text(wait))
end
local b = ballot + 1
if ballot == 0 then
  -- All nodes take the caller's time for a new key, so that they agree in one round trip.
  b = tonumber(ARGV[4])
  local ahead = b - now()
  if math.abs(ahead) > tonumber(ARGV[5]) then
    return answer(CLOCK, false, text(ahead))
  end
end
promise_to(b, me, ARGV[3])
call('SET', KEYS[1], me, 'PX', ARGV[2])
if not accepted then
  return {YES, text(b), run}
end
return answer(YES, true, run)
