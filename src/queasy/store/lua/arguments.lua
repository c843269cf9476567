-- The arguments of a call: parsed, or refused before anything is written.

local CHUNK, refuse, parse_number = keys.CHUNK, keys.refuse, keys.parse_number

-- The remaining arguments: the ids or clients that a call is about. Bounded, as every call is.
local function rest_args(argv, first, last)
  last = last or #argv
  if last - first + 1 > CHUNK then
    refuse('expected at most ' .. CHUNK .. ' ids or clients in one call')
  end
  local out = {}
  for i = first, last do
    out[#out + 1] = argv[i]
  end
  return out
end

local function count_arg(text, what, most)
  local n = parse_number(text, what)
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
    refuse('expected failed or broken, got ' .. tostring(text))
  end
  return text
end

-- The caller and the number of this call, if the keys calls and callers follow the first `n` keys;
-- nil if they do not. The second result is the index of the last other argument.
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

-- Client ids, from argv[first] on.
local function clients_arg(argv, first)
  local clients = rest_args(argv, first)
  for _, client in ipairs(clients) do
    client_arg(client)
  end
  return clients
end

-- How many groups of `width` arguments there are from argv[first] to argv[last].
local function group_count(first, last, width, what)
  local n = (last - first + 1) / width
  if n ~= math.floor(n) or n < 1 or n > CHUNK then
    refuse('expected ' .. width .. ' arguments for each of 1 to ' .. CHUNK .. ' ' .. what)
  end
  return n
end

-- The arguments of a dequeue as one record (api.lua lists them).
local function dequeue_arg(argv)
  local client = client_arg(argv[2])
  local endings = count_arg(argv[8], 'the leases to end', CHUNK)
  local words, packed = argv[9 + 5 * endings] or '', argv[10 + 5 * endings]
  local waiter = argv[6] ~= '' and (argv[6] == client and client or client_arg(argv[6]))
  return {
    client = client, lease_ms = count_arg(argv[3], 'the lease'),
    limit = count_arg(argv[4], 'the limit', CHUNK), request = argv[5], waiter = waiter,
    waits_ms = count_arg(argv[7], 'the time to wait'),
    first_ending = 9, endings = endings, packed_finishes = packed,
    beside = count_arg(words:match('beside=(%d+)') or '0', 'the other jobs'),
    takes_handoffs = words:find('hand', 1, true) ~= nil,
  }
end

return {
  rest_args = rest_args, count_arg = count_arg, client_arg = client_arg, kind_arg = kind_arg,
  call_arg = call_arg, clients_arg = clients_arg, group_count = group_count,
  dequeue_arg = dequeue_arg,
}
