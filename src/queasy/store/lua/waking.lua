-- Waking clients that wait for jobs.
--
-- A waiter is a client that sleeps until there is work. It has an entry in `waiters`: the time at
-- which it polls at the latest. A call that makes jobs due wakes one waiter for each, unless the
-- queue is paused. All of this is best effort, after everything is written.
--
-- Two waiters keep the time: they poll when the next job comes due or the next lease expires, and
-- otherwise now and then, in case a message was lost. The others rest. If something is to happen
-- before the two poll, a message asks two waiters to poll at that time.
--
-- A host may vanish with its connections open: messages to its waiters then seem to be received. A
-- supervisor may die with all its workers, its group of clients (client.lua). So no event depends
-- on the waiters of one host, nor of one group, if there are others. If there are two hosts, both
-- keep the time; else two groups. If a waiter is woken for a job, a waiter of another host, or else
-- of another group, polls soon after, and takes the job if it is still due.
--
-- A waiter whose process has other jobs is not woken for a suspect that must run alone.

local OUTAGE_MS, CONTACT_EVERY_MS, CHUNK = keys.OUTAGE_MS, keys.CONTACT_EVERY_MS, keys.CHUNK
local SILENCE_MS, RECONNECT_MS = keys.SILENCE_MS, keys.RECONNECT_MS
local RECORD_EVERY_MS, MAX_INTEGER = keys.RECORD_EVERY_MS, keys.MAX_INTEGER
local in_grace, continues_silence = keys.in_grace, keys.continues_silence
local channel_of = keys.channel_of
local companions_of = job.companions_of
local lease_range, host_of, group_of = client.lease_range, client.host_of, client.group_of
local remove_waiter, first_waiters = waiters.remove, waiters.first_waiters

-- A waiter that should have polled this long ago keeps no time: most likely its host is gone.
local OVERDUE_MS = 2000

-- How many clients to look at for the first that holds a job.
local EXPIRIES = 10

-- A wake-up for a job is checked after this time, by a waiter of another host or group.
local CHECK_AFTER_MS = 2000

-- A waiter sleeps for whole milliseconds and polls up to one later than it asked for.
local POLL_TOLERANCE_MS = 1

-- A poll that must come before a silence counts comes this much earlier.
local POLL_MARGIN_MS = 250

-- A waiter counts its time from the arrival of the message, and the message leaves the server only
-- when the call has ended. This is a generous estimate of how long that takes for each job that the
-- call dispatches: 1,000 jobs took 4 ms, more on a busy machine. If the waiter polls too early, the
-- reply says when to poll again. The call cannot measure it: its clock stands still in Valkey.
local CALL_MS_PER_JOB = 0.02

-- A call looks at this many waiters to find those that keep the time, and at more only if all of
-- these are of one host. The first two are enough in most cases: those that keep the time are the
-- first to poll.
local LOOK_AT = 20

-- A waiter that rests polls after this time at the latest, so that it stays registered.
local MAX_REST_MS = 600000

-- This many waiters poll as often as they ask to. If there are more, each polls less often, so that
-- together they poll about as often as these.
local FREQUENT_WAITERS = 4

-- How independent two clients are: 2 if they are of different hosts, 1 if of different groups on
-- one host, 0 if of one group.
local function apart(one, other)
  if host_of(one) ~= host_of(other) then
    return 2
  end
  return group_of(one) ~= group_of(other) and 1 or 0
end

-- Sends a waiter a message and removes the waiter. Returns whether any subscriber received it; nil
-- if this user may not publish: then the waiter stays, for others to wake. There may be two
-- subscribers: the connection of a dead client counts until the server notices its end.
local function notify(q, client, message)
  local received = redis.pcall('SPUBLISH', channel_of(q, client), message)
  if type(received) ~= 'number' then
    return nil
  end
  remove_waiter(q, client)
  return received > 0
end

-- Whether the client is subscribed on this server. A client that is subscribed only on a replica,
-- such as a former primary, also receives messages, but the server does not count it. False if this
-- user may not ask.
local function is_subscribed(q, client)
  local listeners = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel_of(q, client))
  return (listeners[2] or 0) > 0
end

-- Asks a waiter to poll at `at`. Returns whether any subscriber received the message; if none did,
-- removes the waiter. nil if this user may not publish.
local function appoint(q, client, at)
  local call_ms = (q.dispatched or 0) * CALL_MS_PER_JOB
  local message = 'poll:' .. math.max(0, math.ceil(at - q.now - call_ms))
  local received = redis.pcall('SPUBLISH', channel_of(q, client), message)
  if type(received) ~= 'number' then
    return nil
  elseif received == 0 then
    remove_waiter(q, client)
    return false
  end
  redis.pcall('ZADD', q.waiters, 'XX', math.floor(at), client)
  return true
end

-- The first LOOK_AT waiters that poll from `from` to `to`, and when: { client, poll_at, ... }. If
-- all of these are of one host, the first of another host follows them. If all are of one group,
-- the first of another group does, if it comes earlier. Both are among the next CHUNK waiters.
local function polling_between(q, from, to)
  local found = redis.pcall('ZRANGE', q.waiters, from, to, 'BYSCORE', 'LIMIT', 0, LOOK_AT,
    'WITHSCORES')
  if found.err or #found < 2 * LOOK_AT then
    return found.err and {} or found
  end
  local most = 0
  for i = 3, #found, 2 do
    most = math.max(most, apart(found[1], found[i]))
  end
  local more = most < 2 and redis.pcall('ZRANGE', q.waiters, from, to, 'BYSCORE',
    'LIMIT', LOOK_AT, CHUNK, 'WITHSCORES') or {}
  for i = 1, more.err and 0 or #more, 2 do
    if apart(found[1], more[i]) > most then
      found[#found + 1], found[#found + 2] = more[i], more[i + 1]
      most = apart(found[1], more[i])
    end
  end
  return found
end

-- The waiters that poll by `at`, without those that are overdue.
local function keepers(q, at)
  return polling_between(q, q.now - OVERDUE_MS, at + POLL_TOLERANCE_MS)
end

-- The first waiters that poll after `at`.
local function later_waiters(q, at)
  return polling_between(q, string.format('(%.17g', at + POLL_TOLERANCE_MS), '+inf')
end

-- Has a second waiter, beside `client`, poll by `at`: the most independent one it finds. Does
-- nothing if that one is less than `least` apart from `client`, or not further than one in
-- `polling`.
local function appoint_beside(q, client, polling, at, least)
  local most = -1
  for i = 1, #polling, 2 do
    most = math.max(most, polling[i] == client and -1 or apart(client, polling[i]))
  end
  local later, distances = most < 2 and later_waiters(q, at) or {}, {}
  for wanted = 2, math.max(least, most + 1), -1 do
    for i = 1, #later, 2 do
      local other = later[i]
      distances[i] = distances[i] or other == client and -1 or apart(client, other)
      if distances[i] == wanted and appoint(q, other, at) ~= false then
        return
      end
    end
  end
end

-- Has a waiter of another host, or else of another group, poll after CHECK_AFTER_MS: the host or
-- the supervisor of the waiter that was woken may be gone. Until that poll, further wake-ups need
-- no other check.
local function check_soon(q, woken)
  local at = math.floor(q.now + CHECK_AFTER_MS)
  appoint_beside(q, woken, keepers(q, at), at, 1)
end

-- Wakes up to `n` waiters, because there is work. A waiter that receives nothing is gone. Returns
-- true if no waiter is left, or none can be woken.
local function wake_waiters(q, n)
  local gone, woken = 0, nil
  while n > 0 and gone < CHUNK do
    local waiters = redis.pcall('ZRANGE', q.waiters, 0, math.min(n, CHUNK) - 1)
    if waiters.err or #waiters == 0 then
      return true
    end
    for _, client in ipairs(waiters) do
      local received = notify(q, client, 'wake')
      if received == nil then
        return true
      end
      n, gone = n - (received and 1 or 0), gone + (received and 0 or 1)
      woken = received and client or woken
    end
  end
  if woken then
    check_soon(q, woken)
  end
  return false
end

-- Wakes up to `n` waiters that run nothing else: they accept any suspect.
local function wake_for_suspects(q, n)
  local waiters, busy = first_waiters(q)
  local woken
  for i, client in ipairs(waiters) do
    if n > 0 and not busy[i] and notify(q, client, 'wake') then
      n, woken = n - 1, client
    end
  end
  if woken then
    check_soon(q, woken)
  end
end

-- When the first job is due, which may be in the past; nil for never.
local function next_job_at(q)
  local head = redis.pcall('ZRANGE', q.waiting, 0, 0, 'WITHSCORES')
  local at = not head.err and not q.paused and tonumber(head[2] or nil) or nil
  if at and at <= q.time then
    at = math.min(at, q.now) -- due, also if the clock was set back
  end
  return at
end

-- When the first job that is not due yet will be due; nil for never.
local function next_scheduled_at(q)
  local after = string.format('(%.17g', q.time)
  local head = redis.pcall('ZRANGE', q.waiting, after, '+inf', 'BYSCORE',
    'LIMIT', 0, 1, 'WITHSCORES')
  return not head.err and not q.paused and tonumber(head[2] or nil) or nil
end

local function head_is_suspect(q)
  local head = redis.pcall('ZRANGE', q.waiting, 0, 0)
  local info = not head.err and head[1] and redis.pcall('HGET', q.info, head[1])
  return type(info) == 'string' and companions_of(info) ~= nil
end

local function any_leases(q)
  local lease_count = q.leases and redis.pcall('ZCARD', q.leases)
  return type(lease_count) == 'number' and lease_count > 0
end

-- When the lease of the first client that holds a job expires; nil if no job is leased. The death
-- of an idle client needs no poll. If none of the first clients holds a job, a poll is needed when
-- the last of them has expired.
local function first_expiry(q)
  if not any_leases(q) then
    return nil
  end
  local clients = redis.pcall('ZRANGE', q.clients, 0, EXPIRIES - 1, 'WITHSCORES')
  for i = 1, clients.err and 0 or #clients, 2 do
    local held = redis.pcall('ZLEXCOUNT', q.leases, lease_range(clients[i]))
    if held ~= 0 or i == 2 * EXPIRIES - 1 then
      return tonumber(clients[i + 1])
    end
  end
  return nil
end

-- When a client must poll because of a lease that expires at `expiry`. Polls are also needed before
-- that. Otherwise the silence until then would count as an outage, or would continue the last
-- silence: then a grace period would follow, and the lease would count until its end.
local function poll_time_for(q, expiry)
  local from = q.last_contact or q.now
  local left, continues = expiry - from, continues_silence(q, from)
  local at = expiry
  if left > CONTACT_EVERY_MS then
    at = math.max(from + CONTACT_EVERY_MS, expiry - (OUTAGE_MS + 1000))
  end
  if continues and left > RECONNECT_MS then
    return math.max(from + RECORD_EVERY_MS, math.min(at, expiry - RECONNECT_MS))
  elseif continues and left > SILENCE_MS - POLL_MARGIN_MS then
    return from + SILENCE_MS - POLL_MARGIN_MS
  end
  return at
end

-- When a client must poll next: because a job comes due, at `at`, or because the lease of a job
-- expires. nil for never.
local function next_event_at(q, at)
  local expiry = first_expiry(q)
  if expiry then
    if in_grace(q) and expiry > q.gap_from then
      expiry = math.max(expiry, q.grace_until)
    end
    if not at or at > q.now then
      expiry = poll_time_for(q, expiry)
    end
    at = math.min(at or expiry, expiry)
  end
  return at
end

-- Whole milliseconds until a time, at least 0; -1 for never.
local function ms_until(q, at)
  return at and math.max(0, math.min(math.ceil(at - q.now), MAX_INTEGER)) or -1
end

-- Whether two other waiters poll by `at`, so that `client` need not. If `client` is further apart
-- from them than they are from each other, it is needed.
local function others_keep_time(q, client, at)
  local found, n, first, most = keepers(q, at), 0, nil, 0
  for i = 1, #found, 2 do
    local other = found[i]
    if other ~= client and is_subscribed(q, other) then
      n, first = n + 1, first or other
      most = math.max(most, apart(first, other))
      if n >= 2 and most >= apart(first, client) then
        return true
      end
    end
  end
  return false
end

-- Has two waiters poll by `at`: of two hosts if it finds two, else of two groups.
local function keep_time(q, at)
  local polling = keepers(q, at)
  local first = polling[1]
  local found = first and {} or later_waiters(q, at)
  for i = 1, #found, 2 do
    local polls = appoint(q, found[i], at)
    if polls == nil then
      return
    elseif polls then
      first = found[i]
      break
    end
  end
  if first then
    appoint_beside(q, first, polling, at, 0)
  end
end

-- How long a client rests that need not keep the time.
local function rest_ms(q, waits_ms)
  local rest = waits_ms * redis.call('ZCARD', q.waiters) / FREQUENT_WAITERS
  return math.floor(math.max(waits_ms, math.min(rest, MAX_REST_MS)))
end

-- Appoints waiters if too few would poll in time for the next event. A job that is due already does
-- not count: a waiter was woken when it became due. If the first due job is a suspect, waiters that
-- skip suspects still sleep, and the next scheduled job counts.
local function ensure_timely_poll(q)
  local first = not q.no_waiters and redis.pcall('ZRANGE', q.waiters, 0, 0) or {}
  if not first[1] then
    return
  end
  local at = next_job_at(q)
  if at and at <= q.time and head_is_suspect(q) then
    at = next_scheduled_at(q)
  end
  at = next_event_at(q, at)
  if at and at > q.time then
    keep_time(q, at)
  end
end

-- At the end of a call: wakes a waiter for each job that became due, and has two poll in time.
local function wake_after_call(q)
  if q.due and not q.paused and wake_waiters(q, q.due) then
    return
  end
  if q.due_suspects and not q.paused then
    wake_for_suspects(q, q.due_suspects)
  end
  ensure_timely_poll(q)
end

-- Wakes a waiter for each job that is due, as if all had become due in this call.
local function wake_for_all_due(q)
  q.due = math.min(redis.call('ZCOUNT', q.waiting, '-inf', q.time), CHUNK)
  wake_after_call(q)
end

local function count_due(q, score, companions)
  if score <= q.time then
    local kind = companions == 0 and 'due_suspects' or 'due'
    q[kind] = (q[kind] or 0) + 1
  end
end

return {
  notify = notify, is_subscribed = is_subscribed,
  others_keep_time = others_keep_time, rest_ms = rest_ms, wake_waiters = wake_waiters,
  wake_for_suspects = wake_for_suspects, next_job_at = next_job_at,
  next_scheduled_at = next_scheduled_at, next_event_at = next_event_at, ms_until = ms_until,
  ensure_timely_poll = ensure_timely_poll, wake_after_call = wake_after_call,
  wake_for_all_due = wake_for_all_due, count_due = count_due,
}
