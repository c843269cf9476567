-- The arguments of a call: refused before anything is written, or as the functions need them.

-- The most ids that one call takes, and the most entries that it reads of a list.
local CHUNK = 1000

local function refuse(message)
  error({ err = 'QUEASYBAD ' .. message })
end

local function whole(text, what, least, most)
  local n = tonumber(text)
  if not n or n ~= math.floor(n) or n < least or n > most then
    refuse('expected a whole number from ' .. least .. ' to ' .. most .. ' for ' .. what)
  end
  return n
end

local function ids_from(argv, first)
  if #argv - first + 1 > CHUNK then
    refuse('expected at most ' .. CHUNK .. ' ids in one call')
  end
  local ids = {}
  for at = first, #argv do
    ids[#ids + 1] = argv[at]
  end
  return ids
end

return {
  CHUNK = CHUNK,
  refuse = refuse,
  whole = whole,
  ids_from = ids_from,
}
