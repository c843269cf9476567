-- Keys, settings and the clock of one queue.
--
-- A queue is a fixed set of keys in one slot. There is one order of keys: NAMES, then the same
-- names of the queue's fail queue. Every call passes keys in that order, from the first on. A
-- function says how many it needs, and accepts more.

local server_time = clock.server_time

-- A dispatch needs the first PRODUCER_KEYS, a put that may hand off a job those up to `broken_at`.
-- The names from `results` on are reserved. No key of that name exists yet, but clients pass them
-- all the same: so a later revision can use them in the calls of today's clients.
local NAMES = {
  'waiting', 'data', 'info', 'active', 'blocked', 'meta', 'stats', 'waiters', 'waiter_info',
  'calls', 'callers', 'leases', 'clients', 'requests', 'workers', 'broken', 'broken_at',
  'cancels', 'failed', 'failed_at',
  'results', 'results_at', 'lanes', 'lane_counts', 'schedules', 'schedules_at',
  'outbox', 'outbox_at',
}
local PRODUCER_KEYS = 11
local QUEUE_KEYS = #NAMES
local USED_KEYS = 20
-- How many keys of its fail queue a call needs to dispatch a job there.
local FAIL_KEYS = 9

-- The smallest step of a score. A double can represent it, in milliseconds, until the year 2109. No
-- server accepts two jobs within a microsecond, so scores do not run ahead of the clock.
local TICK = 2 ^ -11
local MAX_TIME = 2 ^ 42

-- The largest integer up to which a double represents every integer.
local MAX_INTEGER = 2 ^ 53 - 1

-- If no call wrote to the queue for this long, the server (or its clock) had an outage, not the
-- clients.
local OUTAGE_MS = 10000
-- While jobs are leased, some client must call at least this often before a lease expires.
-- Otherwise the silence would count as an outage, and a dead client would get the grace period of
-- an outage.
local CONTACT_EVERY_MS = OUTAGE_MS - 1000
-- A shorter silence than this needs no note: while a worker holds jobs, its heartbeat calls every
-- second. A silence between this and OUTAGE_MS may be an outage as well. No lease of a worker runs
-- out in one such silence, but a lease may run out in two, if only other clients called in between.
local SILENCE_MS = 2000
-- A call that writes nothing else records its time if the last record is older.
local RECORD_EVERY_MS = 500
-- The time that clients need to call after a silence.
local RECONNECT_MS = 2500
-- A silence that begins before clients had time to call continues the previous one. It must begin
-- this soon after the server came back from the first of them: FLAPPING_MS if it is an outage, else
-- SHORT_FLAPPING_MS. Without these bounds, a queue that is called once an hour, or every five
-- seconds, would never return the jobs of a dead client: each silence would continue the last one.
local FLAPPING_MS = 60000
local SHORT_FLAPPING_MS = 15000
-- If the clock is further than this before the highest time seen, it was set back. Within one call
-- the order of acceptance moves that time ahead by at most half a millisecond.
local SET_BACK_MS = 100

-- Lua's stack bounds `unpack` and the number of arguments of a command.
local CHUNK = 1000

-- The server stores a small hash or sorted set as a listpack and searches it linearly, until it has
-- 512 (hash) or 128 (sorted set) entries, or one long entry. A call that adds at least BULK entries
-- forces the other encoding: it adds LONG_ENTRY first and removes it in the same commit.
local BULK = 8
local LONG_ENTRY = '------------------------------------------------------------------------'

-- Moving a payload from one record to another copies it several times, which takes milliseconds for
-- each megabyte. A call that can stop half way stops after this many bytes, so that it ends in a
-- fraction of 50 ms. It always handles at least one job, however large. A call that ends leases
-- cannot stop half way: it is refused.
local MAX_CALL_BYTES = 2 * 2 ^ 20

-- The format of the data in these keys. A library that changes the meaning of what is stored, so
-- that this one would misread it, raises the number in `meta` of the queues that it changes.
local FORMAT = 1

-- Fields of `meta`: those that every call reads, and those that are read when needed.
local CLOCK = {
  'time', 'token', 'paused', 'gap_from', 'grace_until', 'heard', 'format', 'has_failed',
}
local SETTINGS = { 'limits', 'fail_handler', 'failed_limit', 'broken_limit' }

local function refuse(message)
  error({ err = 'QUEASYBAD ' .. message })
end

-- A number from the arguments of a call; refuses NaN and infinities.
local function parse_number(text, what)
  local value = tonumber(text)
  if not value or value ~= value or value == math.huge or value == -math.huge then
    refuse('expected a number for ' .. what)
  end
  return value
end

-- A number that the server stores. Another program may have written anything there: a value that is
-- not a number from 0 to `most` is nil, as if it were not set.
local function stored_number(text, most)
  local value = tonumber(text)
  if value and value >= 0 and value <= most then
    return value
  end
  return nil
end

-- Runs a command over many fields of one key, in chunks. The reply has false for a field that is
-- absent.
local function in_chunks(command, key, fields)
  local n = #fields
  if n == 0 then
    return {}
  end
  if n <= CHUNK then
    return redis.call(command, key, unpack(fields))
  end
  local out = {}
  for first = 1, n, CHUNK do
    local last = math.min(first + CHUNK - 1, n)
    local part = redis.call(command, key, unpack(fields, first, last))
    for i = 1, last - first + 1 do
      out[first + i - 1] = part[i]
    end
  end
  return out
end

-- HMGET of many ids from a hash that is usually empty: one HLEN is cheaper than a lookup for each
-- id. The reply has nil or false for an id that is absent.
local function hmget_sparse(key, ids)
  if #ids > 3 and redis.call('HLEN', key) == 0 then
    return {}
  end
  return in_chunks('HMGET', key, ids)
end

-- A table with space for `n` entries: Lua rebuilds a growing table each time its size doubles. Its
-- initial values have no meaning.
local FILLER = {}

local function presized(n)
  if n < 6 then
    return { nil, nil, nil, nil, nil }
  end
  n = n < CHUNK and n or CHUNK
  for i = #FILLER + 1, n do
    FILLER[i] = ''
  end
  return { unpack(FILLER, 1, n) }
end

-- Whether a silence that begins at `contact` continues the last one: clients had no time to call in
-- between.
local function continues_silence(q, contact)
  return contact >= q.grace_until - OUTAGE_MS and contact < q.grace_until + RECONNECT_MS
end

-- Notes that the queue was not called from its last contact until now. After an outage, clients
-- that were alive when it began get a grace period to call again. After a shorter silence they need
-- none, unless it continues another: then both count as one, from the start of the first.
local function note_silence(q)
  local contact, back = q.last_contact, redis.call('HGET', q.meta, 'back_at')
  local is_outage = q.now - contact > OUTAGE_MS
  local first_back = stored_number(back, MAX_TIME) or q.grace_until - OUTAGE_MS
  local continues = continues_silence(q, contact)
    and contact - first_back < (is_outage and FLAPPING_MS or SHORT_FLAPPING_MS)
  local grace_until
  if is_outage then
    grace_until = q.now + OUTAGE_MS
  elseif continues then
    grace_until = math.max(q.grace_until, q.now + RECONNECT_MS)
  elseif q.now < q.grace_until then
    return -- the grace period of an outage goes on
  else
    grace_until = q.now
  end
  q.old_back, q.back_at = back, continues and first_back or q.now
  q.gap_from = continues and math.min(q.gap_from, contact) or contact
  q.grace_until = grace_until
end

-- Refuses a queue whose data a later library wrote in a format that this one does not know.
local function check_format(stored, meta_key)
  local format = stored_number(stored, MAX_INTEGER)
  if format and format > FORMAT then
    error({ err = 'QUEASYNEW ' .. meta_key .. ' says that the data of this queue has format '
      .. format .. '. This library knows format ' .. FORMAT .. ': load the newer library again, '
      .. 'by connecting a client of the newer version' })
  end
end

-- Opens a queue. For a fail queue, `first` is the place of its first key, and `now` the time of the
-- call.
local function open_queue(keys, first, now)
  first = first or 1
  local waiting, data, info, active, blocked, meta_key, stats, waiters, _, _, _, leases, clients,
    requests, workers, broken, broken_at, cancels, failed, failed_at =
    unpack(keys, first, first == 1 and USED_KEYS or first + FAIL_KEYS - 1)
  local clock = redis.call('HMGET', meta_key, unpack(CLOCK))
  if clock[7] ~= '1' then -- as a rule it is: this is FORMAT
    check_format(clock[7], meta_key)
  end
  local time = now or server_time()
  local stored_time = stored_number(clock[1], MAX_TIME) -- nil: no call has written yet
  -- The last time heard is the highest time seen, except after the clock was set back.
  local heard = clock[6] and stored_time and stored_number(clock[6], stored_time)
  local token, grace_until = stored_number(clock[2], MAX_INTEGER), stored_number(clock[5], MAX_TIME)
  -- One constructor with at most 32 fields: Lua rebuilds a growing table each time its size
  -- doubles.
  local q = {
    waiting = waiting, data = data, info = info, active = active, blocked = blocked,
    meta = meta_key, stats = stats, waiters = waiters, keys = keys, counts = {}, old_clock = clock,
    now = time, last_contact = heard or stored_time, stored_time = stored_time,
    time = stored_time or time, token = token or 0, paused = clock[3] == '1',
    gap_from = stored_number(clock[4], MAX_TIME) or 0, grace_until = grace_until or 0,
    -- false: the field exists but cannot be read
    stored_token = token or not clock[2] and 0, stored_grace = grace_until or not clock[5] and 0,
  }
  if broken_at then
    q.leases, q.clients, q.requests, q.workers = leases, clients, requests, workers
    q.broken, q.broken_at = broken, broken_at
  end
  if failed_at then -- assigning nil to a new field also takes space
    q.cancels, q.failed, q.failed_at = cancels, failed, failed_at
  end
  if q.now - (q.last_contact or q.now) > SILENCE_MS then
    note_silence(q)
  end
  if q.now > q.time then
    q.time = q.now
  end
  return q
end

-- Names the keys by which a repeated call is recognised: few calls need them.
local function open_calls(q)
  q.calls, q.callers = q.keys[10], q.keys[11]
end

-- The key of the records of waiters, in a queue or in a fail queue: few calls need it.
local function waiter_info_key(q)
  return q.keys[q.waiters == q.keys[8] and 9 or QUEUE_KEYS + 9]
end

-- The time of this call, if it is to be stored apart from the highest time seen: the clock was set
-- back. nil if not.
local function heard_apart(q)
  return q.time - q.now > SET_BACK_MS and q.now or nil
end

-- The settings of the queue, as `configure` wrote them.
local function settings_of(q)
  if not q.settings then
    local raw = redis.call('HMGET', q.meta, unpack(SETTINGS))
    q.settings = {
      limits = raw[1],
      fail_handler = raw[2] == '1' or (stored_number(raw[2], MAX_INTEGER) or 0) > q.now,
      failed_limit = math.floor(stored_number(raw[3], MAX_INTEGER) or 1000),
      broken_limit = math.floor(stored_number(raw[4], MAX_INTEGER) or 1000),
    }
  end
  return q.settings
end

-- The fail queue of `q`, opened when first needed; nil if the call did not receive its keys.
local function fail_queue_of(q)
  if not q.fail_queue and q.keys[QUEUE_KEYS + FAIL_KEYS] then
    q.fail_queue = open_queue(q.keys, QUEUE_KEYS + 1, q.now)
  end
  return q.fail_queue
end

-- The next position in the order of acceptance. It increases, also within one call.
local function tick(q)
  if q.ticked then
    q.time = q.time + TICK
  else
    q.ticked = true
    if q.stored_time and q.time <= q.stored_time then
      q.time = q.time + TICK
    end
  end
  return q.time
end

-- Whether the grace period after an outage is running. If the clock was set back to before that
-- period, it is not: then live clients have leases by the new clock, which expire before the outage
-- began.
local function in_grace(q)
  return q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS
end

-- A client is dead if its lease expired at this time or earlier.
local function expiry_cutoff(q)
  return in_grace(q) and q.gap_from or q.now
end

-- When a job dispatched with `when` is to run: '' is now, '+5000' is in five seconds,
-- '1767225600000' is at that time. A job that is already due is accepted now, after the jobs that
-- wait. The second result says whether the job is due.
local function schedule(q, when)
  local accepted = tick(q)
  if when == '' then
    return accepted, true
  end
  local at
  if when:byte(1) == 43 then -- '+'
    -- Relative to now, not to the highest time seen, which a wrong clock may have set.
    at = q.now + parse_number(when:sub(2), 'a delay')
  else
    at = parse_number(when, 'run_at')
  end
  if at <= q.now then
    return accepted, true
  end
  -- Jobs that one call schedules for the same instant keep their order.
  q.scheduled = (q.scheduled or -1) + 1
  return at + q.scheduled * TICK, false
end

-- The pub/sub channel on which a client receives messages about this queue.
local function channel_of(q, client)
  return q.meta:sub(1, -5) .. 'client:' .. client
end

return {
  NAMES = NAMES, PRODUCER_KEYS = PRODUCER_KEYS, QUEUE_KEYS = QUEUE_KEYS, MAX_TIME = MAX_TIME,
  MAX_INTEGER = MAX_INTEGER, OUTAGE_MS = OUTAGE_MS, CONTACT_EVERY_MS = CONTACT_EVERY_MS,
  SILENCE_MS = SILENCE_MS, RECONNECT_MS = RECONNECT_MS, RECORD_EVERY_MS = RECORD_EVERY_MS,
  CHUNK = CHUNK, BULK = BULK, LONG_ENTRY = LONG_ENTRY, MAX_CALL_BYTES = MAX_CALL_BYTES,
  FORMAT = FORMAT, CLOCK = CLOCK, SETTINGS = SETTINGS, refuse = refuse, parse_number = parse_number,
  stored_number = stored_number, in_chunks = in_chunks, hmget_sparse = hmget_sparse,
  presized = presized, open_queue = open_queue, open_calls = open_calls,
  waiter_info_key = waiter_info_key, heard_apart = heard_apart, settings_of = settings_of,
  fail_queue_of = fail_queue_of, tick = tick, in_grace = in_grace,
  continues_silence = continues_silence, expiry_cutoff = expiry_cutoff,
  schedule = schedule, channel_of = channel_of,
}
