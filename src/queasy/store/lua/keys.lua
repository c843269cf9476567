-- Keys, settings and the clock of one queue.
--
-- A queue is a fixed set of keys in one slot. Every function is given them in this one
-- order, most of them the first QUEUE_KEYS; a function that may give a job up is given the
-- first FAIL_KEYS of the queue's fail queue after them.

local NAMES = {
  'waiting', 'data', 'info', 'active', 'blocked', 'meta', 'stats', 'waiters',
  'leases', 'clients', 'requests', 'cancels', 'workers', 'failed', 'failed_at',
  'broken', 'broken_at', 'calls', 'callers',
}
local QUEUE_KEYS = 17
local FAIL_KEYS = 8

-- One step of a score: what a double can tell apart in milliseconds until the year 2109. No
-- server accepts two jobs in a microsecond, so stepping never runs ahead of the clock.
local TICK = 2 ^ -11
local LATEST = 2 ^ 42

-- Up to here a double counts one by one.
local MOST = 2 ^ 53 - 1

-- When nobody was heard for this long the server (or its clock) was away, not the clients.
local OUTAGE_MS = 10000
-- So often somebody is to be heard before a lease runs out: or whoever died with it, whom nobody hears,
-- would seem to be alive, and kept silent by an outage.
local HEARD_EVERY_MS = OUTAGE_MS - 1000

-- `unpack` and a command's arguments are bounded by Lua's stack.
local CHUNK = 1000

-- A small hash or zset the server keeps as a list, and searches it from end to end, until it has 512
-- entries, or 128, or one that is long. Who adds MANY at once sees to it that it becomes a table: LONG
-- goes in first, and out again in the same commit.
local MANY = 8
local LONG = '------------------------------------------------------------------------'

-- Payloads are copied several times on their way from one record to another, at milliseconds for
-- each megabyte. A call that may stop half way does so when it has handled this many bytes, and so
-- is over in a fraction of 50 ms; one job it always handles, however large.
local BYTES = 2 * 2 ^ 20

-- Of `meta`: what every call reads, and what is read when it is needed.
local CLOCK = { 'time', 'token', 'paused', 'gap_from', 'grace_until' }
local SETTINGS = { 'limits', 'fail_handler', 'failed_limit', 'broken_limit' }

local function refuse(message)
  error({ err = 'QUEASYBAD ' .. message })
end

-- A number that is an argument of a call; NaN and infinities are nobody's time or count.
local function number(text, what)
  local value = tonumber(text)
  if not value or value ~= value or value == math.huge or value == -math.huge then
    refuse('expected a number for ' .. what)
  end
  return value
end

-- A number that the server keeps, where anybody may have put anything; nil when it is none from
-- 0 to `most`, and then it is as if nothing were there.
local function kept(text, most)
  local value = tonumber(text)
  if value and value >= 0 and value <= most then
    return value
  end
  return nil
end

-- A command over many fields of one key, in bounded pieces; false where there is none.
local function many(command, key, fields)
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

-- HMGET of many ids from a key that mostly is empty, as those are of what is seldom: then it is
-- cheaper to see that once than for each of them. nil or false where there is none.
local function any_of(key, ids)
  if #ids > 3 and redis.call('HLEN', key) == 0 then
    return {}
  end
  return many('HMGET', key, ids)
end

-- A table with room for `n` entries, for who knows how many there will be: one that grows is built anew
-- whenever it has to double. What is in it until then is of no meaning.
local ROOM = {}

local function room_for(n)
  if n < 6 then
    return { nil, nil, nil, nil, nil }
  end
  n = n < CHUNK and n or CHUNK
  for i = #ROOM + 1, n do
    ROOM[i] = ''
  end
  return { unpack(ROOM, 1, n) }
end

local function server_time()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + tonumber(t[2]) / 1000
end

-- Opens the queue of which `n` keys begin at `first`. `now` is empty but in tests, which pass a
-- logical time: no client's clock decides anything.
local function open(keys, first, now, n)
  local waiting, data, info, active, blocked, meta_key, stats, waiters, leases, clients, requests, cancels,
    workers, failed, failed_at, broken, broken_at, calls, callers = unpack(keys, first, first + (n or QUEUE_KEYS) - 1)
  local clock = redis.call('HMGET', meta_key, unpack(CLOCK))
  local time = now == '' and server_time() or number(now, 'now')
  local heard = kept(clock[1], LATEST) -- nil: nobody ever was
  local token, grace_until = kept(clock[2], MOST), kept(clock[5], LATEST)
  -- All at once, and no more than 32 fields: a table is built anew whenever it has to double.
  local q = {
    waiting = waiting, data = data, info = info, active = active, blocked = blocked, meta = meta_key,
    stats = stats, waiters = waiters, keys = keys, counts = {}, old_clock = clock,
    now = time, heard = heard, time = heard or time, token = token or 0,
    paused = clock[3] == '1',
    gap_from = kept(clock[4], LATEST) or 0, grace_until = grace_until or 0,
    -- false: there is one, but it cannot be read
    kept_token = token or not clock[2] and 0, kept_grace = grace_until or not clock[5] and 0,
  }
  if leases then
    q.leases, q.clients, q.requests, q.cancels, q.workers = leases, clients, requests, cancels, workers
    q.failed, q.failed_at, q.broken, q.broken_at = failed, failed_at, broken, broken_at
  end
  if calls then -- a field that is set to nil takes a place as well
    q.calls, q.callers = calls, callers
  end
  if q.now - q.time > OUTAGE_MS then
    -- Whoever was alive when we last heard anyone has one more lease to come back.
    q.gap_from = q.time
    q.grace_until = q.now + OUTAGE_MS
  end
  if q.now > q.time then
    q.time = q.now
  end
  return q
end

-- What holds for the whole queue, as `configure` set it.
local function settings_of(q)
  if not q.settings then
    local raw = redis.call('HMGET', q.meta, unpack(SETTINGS))
    q.settings = {
      limits = raw[1],
      fail_handler = raw[2] == '1',
      failed_limit = math.floor(kept(raw[3], MOST) or 1000),
      broken_limit = math.floor(kept(raw[4], MOST) or 1000),
    }
  end
  return q.settings
end

-- The fail queue beside `q`, opened when it is first needed; nil when it has none.
local function fail_queue_of(q)
  if not q.fail_queue and q.keys[QUEUE_KEYS + 1] then
    q.fail_queue = open(q.keys, QUEUE_KEYS + 1, q.now, FAIL_KEYS)
  end
  return q.fail_queue
end

-- The next place in the order of acceptance: increasing, also within one call.
local function tick(q)
  if q.ticked then
    q.time = q.time + TICK
  else
    q.ticked = true
    if q.heard and q.time <= q.heard then
      q.time = q.time + TICK
    end
  end
  return q.time
end

-- Whether it is the time after an outage. Before that time it is when the clock was set back since:
-- then those who live have leases by that clock, which end before the outage began.
local function in_grace(q)
  return q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS
end

-- A client whose lease ran out at or before this is dead.
local function dead_line(q)
  return in_grace(q) and q.gap_from or q.now
end

-- When a job asked for with `when` is to run: '' is now, '+5000' is in five seconds,
-- '1767225600000' is at that time. What is due already is accepted now, behind what is
-- waiting. The second result says whether it is due.
local function schedule(q, when)
  local accepted = tick(q)
  if when == '' then
    return accepted, true
  end
  local at
  if when:byte(1) == 43 then -- '+'
    -- From now, not from the highest time seen, which may be that of a clock gone wrong.
    at = q.now + number(when:sub(2), 'a delay')
  else
    at = number(when, 'run_at')
  end
  if at <= q.now then
    return accepted, true
  end
  -- Jobs of one call for one instant keep their order.
  q.scheduled = (q.scheduled or -1) + 1
  return at + q.scheduled * TICK, false
end

-- Pub/sub: the channel on which one client hears of this queue.
local function channel(q, client)
  return q.meta:sub(1, -5) .. 'client:' .. client
end

return {
  NAMES = NAMES, QUEUE_KEYS = QUEUE_KEYS, FAIL_KEYS = FAIL_KEYS, LATEST = LATEST, MOST = MOST,
  OUTAGE_MS = OUTAGE_MS, HEARD_EVERY_MS = HEARD_EVERY_MS, CHUNK = CHUNK, MANY = MANY, LONG = LONG,
  BYTES = BYTES, CLOCK = CLOCK, SETTINGS = SETTINGS, refuse = refuse, number = number, kept = kept,
  many = many, any_of = any_of, room_for = room_for, open = open, settings_of = settings_of,
  fail_queue_of = fail_queue_of, tick = tick, in_grace = in_grace, dead_line = dead_line,
  schedule = schedule, channel = channel,
}
