-- The arguments of a call: read, or refused before anything is written.

local CHUNK, refuse, number = keys.CHUNK, keys.refuse, keys.number
local unpack_table = job.unpack_table

-- All further arguments: the ids or clients a call is about. Bounded, as every call is.
local function rest(argv, first, last)
  last = last or #argv
  if last - first + 1 > CHUNK then
    refuse('expected at most ' .. CHUNK .. ' of them in one call')
  end
  local out = {}
  for i = first, last do
    out[#out + 1] = argv[i]
  end
  return out
end

local function count_arg(text, what, most)
  local n = number(text, what)
  if n < 0 or n ~= math.floor(n) or (most and n > most) then
    refuse('expected a whole number' .. (most and ' up to ' .. most or '') .. ' for ' .. what)
  end
  return n
end

local function client_arg(text)
  if not text:match('^~?[%w_-]+$') or #text > 64 then
    refuse('expected a client id of letters, digits, - and _')
  end
  return text
end

local function kind_arg(text)
  if text ~= 'failed' and text ~= 'broken' then
    refuse('expected failed or broken')
  end
  return text
end

-- Whose call this is, and which, when the keys calls and callers are given behind the `n` others;
-- and where the other arguments end.
local function call_arg(q, keys, n, argv)
  q.calls, q.callers = keys[n + 1], keys[n + 2]
  if not q.callers then
    return nil, #argv
  end
  local last = #argv - 2
  if last < 1 then
    refuse('expected a caller and the number of its call')
  end
  local number = count_arg(argv[last + 2], 'the number of a call')
  return { caller = client_arg(argv[last + 1]), number = number }, last
end

-- Leases that are finished, packed: id, token, id, token ... as text.
local function finishes_arg(packed, n)
  local finishes = packed and packed ~= '' and unpack_table(packed)
  if not finishes then
    return packed and packed ~= '' and refuse('expected leases to finish as a list') or {}
  elseif #finishes % 2 ~= 0 or #finishes == 0 and next(finishes) ~= nil or #finishes / 2 + n > CHUNK then
    refuse('expected id and token of each lease to finish, ' .. CHUNK .. ' at most in one call')
  end
  return finishes
end

return {
  rest = rest, count_arg = count_arg, client_arg = client_arg, kind_arg = kind_arg,
  call_arg = call_arg, finishes_arg = finishes_arg,
}
