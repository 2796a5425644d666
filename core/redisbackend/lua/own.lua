-- own returns nil if owner holds the key or left it as an orphan. Otherwise it returns the script's
-- answer: {2, owner} another's, {3, seal} sealed, {4} gone.
local function own(key, owner)
  local value = redis.call('GET', key)
  if not value then
    return {4}
  end
  if value ~= owner then
    return {string.byte(value, 1) == 0 and 3 or 2, value}
  end
end

-- live is own, but an orphan, which stays for orphan ms after the lease, answers {5, owner}. It also
-- returns the PTTL.
local function live(key, owner, orphan)
  local lost = own(key, owner)
  if lost then
    return lost
  end
  local left = redis.call('PTTL', key)
  if orphan > 0 and left >= 0 and left <= orphan then
    return {5, owner}
  end
  return nil, left
end

