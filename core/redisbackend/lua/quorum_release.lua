-- ARGV: owner, ballot or "0" for an attempt that was not granted, life of the promise in ms,
-- channel, message, "1" if somebody else revokes the lease.
local b = tonumber(ARGV[2])
-- No late request of this lease may act any more.
local function outdate()
  if b > 0 then
    promise_to(math.max(ballot, b) + 1, '', ARGV[3])
  end
end
if owner ~= me then
  if ARGV[6] == '1' and not owner and not closed() then
    -- The Acquire may arrive later, and then the holder's Seal must not.
    outdate()
  end
  return answer(owner and HELD or closed() and SEALED or FREE)
end
call('DEL', KEYS[1])
outdate()
return {YES, '0', tell(ARGV[4], ARGV[5])}
