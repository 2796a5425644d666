-- KEYS: lease, promise, waiters. ARGV: owner, TTL in ms, the caller's time in µs, up to which age in ms
-- the node grants nothing, "1" to be told the server's run, waiter or "", life of the waiters in ms.
-- Answers {YES, promise, run}, {HELD, owner, run, PTTL}, {CLOCK, µs ahead}, {ABSTAINS, ms}.
local run = ''
if ARGV[5] == '1' then
  local info = pcall('INFO', 'server')
  run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
if owner == me then
  lengthen(ARGV[2]) -- rule 2: a copy of this request leaves the promise unchanged
  return {YES, text(promised()), run}
end
if owner then
  if ARGV[6] ~= '' then
    announce(KEYS[3], ARGV[6], ARGV[7])
  end
  return {HELD, owner, run, call('PTTL', KEYS[1])}
end
local wait = abstains(ARGV[4]) -- rule 8
if wait ~= 0 then
  return {ABSTAINS, text(wait)}
end
local sent = tonumber(ARGV[3])
if math.abs(sent - now()) > T then -- rule 2: always, and in both directions
  return {CLOCK, text(sent - now())}
end
local p = math.max(promised() + 1, sent) -- rule 2
promise(p)
call('SET', KEYS[1], me, 'PX', ARGV[2])
return {YES, text(p), run}
