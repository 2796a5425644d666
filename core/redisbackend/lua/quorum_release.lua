-- ARGV: owner, ballot or "0" for an attempt that was not granted, life of the promise in ms,
-- channel, message.
if owner ~= me then
  return answer(owner and HELD or closed() and SEALED or FREE)
end
call('DEL', KEYS[1])
local b = tonumber(ARGV[2])
if b > 0 then
  -- No late request of this lease may act any more.
  promise_to(math.max(ballot, b) + 1, '', ARGV[3])
end
return {YES, '0', tell(ARGV[4], ARGV[5])}
