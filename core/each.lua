
end

-- All of a call's locks: their keys and arguments follow each other. Answers as many answers, {0, error} for one that failed. An
-- error is not answered as such: go-redis loses its place in an array that holds one.
local answers, count = {}, #KEYS / each
local args = #ARGV / count
for i = 1, count do
  local fine, answer = pcall(one, {unpack(KEYS, (i - 1) * each + 1, i * each)}, {unpack(ARGV, (i - 1) * args + 1, i * args)})
  if type(answer) == 'table' and answer.err then
    fine, answer = false, answer.err
  end
  answers[i] = fine and answer or {0, tostring(answer)}
end
return answers
