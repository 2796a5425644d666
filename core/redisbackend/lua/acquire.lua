-- KEYS: key, token counter. ARGV: owner, its PX in ms, "1" to mint a token, life of the counter in ms,
-- the owner of an orphan to adopt or "", its retention in ms, the waiter to note if the key is held or
-- "", the set for it, life of the set in ms. While a slot moves, a set that is not there among KEYS
-- would stop the script.
-- Answers {1, last token or ""} granted, {2, owner, PTTL} held or orphaned, {3, seal, PTTL} sealed.
local orphan, rest -- what an adoption replaced, and its PTTL
local mine -- an earlier copy of this request was granted
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not set or set.err then
  local value = redis.call('GET', KEYS[1])
  if not value then
    return set -- out of memory, for example
  end
  local left = redis.call('PTTL', KEYS[1])
  if string.byte(value, 1) == 0 then
    return {3, value, left}
  end
  if value == ARGV[1] then
    mine = true
    -- A try whose reply was lost, or a late copy of one: the lease may have been extended. Each
    -- success writes: WAIT covers what its connection wrote, and nothing else.
    redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  elseif value == ARGV[5] and left >= 0 and left <= tonumber(ARGV[6]) then
    orphan, rest = value, left
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  else
    if ARGV[7] ~= '' then
      announce(ARGV[8], ARGV[7], ARGV[9])
    end
    return {2, value, left}
  end
end
if ARGV[3] ~= '1' then
  return {1, ''}
end
local last, refused = mint(KEYS[2], tonumber(ARGV[4]))
if not last then
  if not mine then
    redis.call('DEL', KEYS[1])
  end
  if orphan then
    redis.call('SET', KEYS[1], orphan, 'PX', math.max(rest, 1))
  end
  return refused
end
return {1, last}
