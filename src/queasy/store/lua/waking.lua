-- Waking clients that wait for jobs.
--
-- A waiter is a client that sleeps until there is work. It has an entry in `waiters`: the time at
-- which it polls at the latest. A call that makes jobs due wakes one waiter for each. If something
-- is to happen before the first waiter polls, that waiter is woken, to poll in time. All of this is
-- best effort, after everything is written.
--
-- The fraction of the entry says what the waiter accepts. A waiter that skips suspects is not woken
-- for them: its entry is half a millisecond below a whole one. A waiter that takes hand-offs
-- (handoff.lua) has a quarter of a millisecond more.

local CONTACT_EVERY_MS, CHUNK, in_grace = keys.CONTACT_EVERY_MS, keys.CHUNK, keys.in_grace
local channel_of = keys.channel_of
local unpack_table = job.unpack_table

-- A waiter that should have polled this long ago is gone.
local WAITER_GONE_MS = 60000

-- Sends a waiter a message and removes the waiter. Returns whether any subscriber received it; nil
-- if this user may not publish: then the waiter stays, for others to wake. There may be two
-- subscribers: the connection of a dead client counts until the server notices its end.
local function notify(q, client, message)
  local received = redis.pcall('SPUBLISH', channel_of(q, client), message)
  if type(received) ~= 'number' then
    return nil
  end
  redis.pcall('ZREM', q.waiters, client)
  return received > 0
end

-- Wakes up to `n` waiters, because there is work or will be soon. A waiter that receives nothing is
-- gone. Returns true if no waiter is left, or none can be woken.
local function wake_waiters(q, n)
  local gone = 0
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
    end
  end
  return false
end

-- Wakes up to `n` waiters that accept suspects.
local function wake_for_suspects(q, n)
  local waiters = redis.pcall('ZRANGE', q.waiters, 0, CHUNK - 1, 'WITHSCORES')
  for i = 1, waiters.err and 0 or #waiters, 2 do
    if n > 0 and tonumber(waiters[i + 1]) % 1 < 0.5 and notify(q, waiters[i], 'wake') then
      n = n - 1
    end
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

-- Decodes an info only if it contains the word: a queue may have many jobs with an info.
local function is_suspect(info)
  local record = info and info:find('suspect', 1, true) and unpack_table(info)
  return record and record.suspect == true
end

local function head_is_suspect(q)
  local head = redis.pcall('ZRANGE', q.waiting, 0, 0)
  local info = not head.err and head[1] and redis.pcall('HGET', q.info, head[1])
  return type(info) == 'string' and is_suspect(info)
end

local function any_leases(q)
  local lease_count = q.leases and redis.pcall('ZCARD', q.leases)
  return type(lease_count) == 'number' and lease_count > 0
end

-- When a client must poll because of a lease that expires at `expiry`. If jobs are leased and the
-- last contact is long past, a poll is needed before that: otherwise the silence would count as an
-- outage.
local function poll_time_for(q, expiry)
  local from = q.last_contact or q.now
  if expiry - from > CONTACT_EVERY_MS and any_leases(q) then
    return math.max(from, expiry - 2 * CONTACT_EVERY_MS) + CONTACT_EVERY_MS
  end
  return expiry
end

-- When a client must poll next: because a job comes due, at `at`, or because a lease expires. nil
-- for never.
local function next_event_at(q, at)
  local first_out = q.clients and redis.pcall('ZRANGE', q.clients, 0, 0, 'WITHSCORES') or {}
  local expiry = not first_out.err and tonumber(first_out[2] or nil) or nil
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

-- Wakes a waiter if none would poll in time for the next event. A job that is due already does not
-- count: a waiter was woken when it became due. If the first due job is a suspect, waiters that
-- skip suspects still sleep, and the next scheduled job counts.
local function ensure_timely_poll(q)
  if q.no_waiters then
    return
  end
  local first = redis.pcall('ZRANGE', q.waiters, 0, 0, 'WITHSCORES')
  if first.err or not first[2] then
    return
  end
  local at = next_job_at(q)
  if at and at <= q.time and head_is_suspect(q) then
    at = next_scheduled_at(q)
  end
  at = next_event_at(q, at)
  -- A waiter sleeps for whole milliseconds and polls up to one later than it asked for; the entry
  -- of one that takes hand-offs is a quarter higher.
  if at and at > q.time and at < tonumber(first[2]) - 1.25 then
    wake_waiters(q, 1)
  end
end

-- At the end of a call: wakes a waiter for each job that became due, and one to poll in time.
local function wake_after_call(q)
  if q.due and wake_waiters(q, q.due) then
    return
  end
  if q.due_suspects then
    wake_for_suspects(q, q.due_suspects)
  end
  ensure_timely_poll(q)
end

local function count_due(q, score, suspect)
  if score <= q.time then
    local kind = suspect and 'due_suspects' or 'due'
    q[kind] = (q[kind] or 0) + 1
  end
end

return {
  WAITER_GONE_MS = WAITER_GONE_MS, notify = notify, wake_waiters = wake_waiters,
  wake_for_suspects = wake_for_suspects, next_job_at = next_job_at,
  next_scheduled_at = next_scheduled_at, is_suspect = is_suspect, next_event_at = next_event_at,
  ensure_timely_poll = ensure_timely_poll, wake_after_call = wake_after_call, count_due = count_due,
}
