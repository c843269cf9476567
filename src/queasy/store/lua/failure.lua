-- The error reply of a call that fails.

local TYPES = audit.TYPES

-- Raises an error that `pcall` caught. `pcall` turns an error into text, whose code word must stay
-- in front. The server does not say which key has the wrong type, so this names it.
local function explain(problem, keys)
  local text = tostring(type(problem) == 'table' and problem.err or problem)
  if text:find('WRONGTYPE', 1, true) then
    for _, key in ipairs(keys) do
      local kind, expected = redis.call('TYPE', key).ok, TYPES[key:match('[^:]*$')]
      if expected and kind ~= 'none' and kind ~= expected then
        error({ err = 'WRONGTYPE key ' .. key .. ' is a ' .. kind .. ', expected a ' .. expected })
      end
    end
  end
  error({ err = text:match('^%u+ ') and text or 'ERR ' .. text })
end

return {
  explain = explain,
}
