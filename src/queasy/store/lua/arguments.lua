-- The arguments of a call: parsed, or refused before anything is written.

local CHUNK, refuse, parse_number = keys.CHUNK, keys.refuse, keys.parse_number
local open_calls = keys.open_calls

local NO_WORDS = {}

-- The longest lease, and the longest wait. If a client dies and no other process sees it, its jobs
-- wait until its lease ends. A client that lives extends its lease.
local MAX_LEASE_MS = 24 * 3600 * 1000

-- The remaining arguments: the ids or clients that a call is about. Bounded, as every call is.
local function rest_args(argv, first)
  if #argv - first + 1 > CHUNK then
    refuse('expected at most ' .. CHUNK .. ' ids or clients in one call')
  end
  local out = {}
  for i = first, #argv do
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

local function lease_arg(text, what)
  local ms = count_arg(text, what)
  if ms > MAX_LEASE_MS then
    refuse('expected at most 24 hours, which are ' .. MAX_LEASE_MS .. ' ms, for ' .. what)
  end
  return ms
end

local function client_arg(text)
  if not text:match('^~?~?[%w_-]+$') or #text > 64 then
    refuse('expected a client id of letters, digits, - and _')
  end
  return text
end

local function flag_arg(text, what)
  if text ~= '1' and text ~= '0' then
    refuse('expected 1 or 0 for ' .. what)
  end
  return text == '1'
end

local function kind_arg(text)
  if text ~= 'failed' and text ~= 'broken' then
    refuse('expected failed or broken, got ' .. tostring(text))
  end
  return text
end

-- The caller and the number of this call, which are the first two arguments; nil if both are ''.
local function call_arg(q, argv)
  if argv[1] == '' and argv[2] == '' then
    return nil
  elseif not argv[2] then
    refuse('expected a caller and the number of its call')
  end
  open_calls(q)
  return { caller = client_arg(argv[1]), number = count_arg(argv[2], 'the number of a call') }
end

-- Client ids, from argv[first] on.
local function clients_arg(argv, first)
  local clients = rest_args(argv, first)
  for _, client in ipairs(clients) do
    client_arg(client)
  end
  return clients
end

-- How many groups of `width` arguments there are from argv[first] on.
local function group_count(argv, first, width, what)
  local n = (#argv - first + 1) / width
  if n ~= math.floor(n) or n < 1 or n > CHUNK then
    refuse('expected ' .. width .. ' arguments for each of 1 to ' .. CHUNK .. ' ' .. what)
  end
  return n
end

-- The words of a dequeue, as a set. A word that this library does not know is refused.
local WORDS = { hand = true }

local function words_arg(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    local beside = word:match('^beside=(%d+)$')
    if beside then
      found.beside = tonumber(beside)
    else
      found[word] = WORDS[word] or refuse('unknown word of a dequeue: ' .. word)
    end
  end
  return found
end

-- The arguments of a dequeue as one record (api.lua lists them).
local function dequeue_arg(argv)
  local client = client_arg(argv[3])
  local endings = count_arg(argv[9], 'the leases to end', CHUNK)
  local words, packed = argv[10 + 4 * endings], argv[11 + 4 * endings]
  if #argv ~= 11 + 4 * endings then
    refuse('expected 4 arguments for each lease to end, then words and a list of finishes')
  end
  words = words == '' and NO_WORDS or words_arg(words)
  local waiter = argv[7] ~= '' and (argv[7] == client and client or client_arg(argv[7]))
  return {
    client = client, lease_ms = lease_arg(argv[4], 'the lease'),
    limit = count_arg(argv[5], 'the limit', CHUNK), request = argv[6], waiter = waiter,
    waits_ms = lease_arg(argv[8], 'the time to wait'),
    first_ending = 10, endings = endings, packed_finishes = packed,
    beside = words.beside or 0, takes_handoffs = words.hand or false,
  }
end

return {
  rest_args = rest_args, count_arg = count_arg, lease_arg = lease_arg, client_arg = client_arg,
  kind_arg = kind_arg,
  call_arg = call_arg, flag_arg = flag_arg, clients_arg = clients_arg, group_count = group_count,
  dequeue_arg = dequeue_arg,
}
