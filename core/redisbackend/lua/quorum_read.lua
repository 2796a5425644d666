-- ARGV: "", for how long the node abstains in ms. Changes nothing.
if owner then
  return answer(HELD, true)
end
if closed() then
  return answer(SEALED, true)
end
return answer(abstains(ARGV[2]) > 0 and ABSTAINS or FREE, true)
