-- Waking clients that wait for jobs.
--
-- Waiters: clients that sleep until there is work. Each stands in `waiters` with the time at
-- which it will look by itself, at the latest. Whatever makes a job due wakes as many as it
-- has jobs; whatever will happen before the first of them looks wakes that one, to keep the
-- time. All of it is best effort, after everything is written.
-- Some pass over suspects, and are not to be woken for those: they stand half a millisecond before
-- a whole one. Some take jobs by hand (see hand.lua): they stand a quarter behind the others.

local HEARD_EVERY_MS, CHUNK, in_grace = keys.HEARD_EVERY_MS, keys.CHUNK, keys.in_grace
local channel = keys.channel
local unpack_table = job.unpack_table

-- Those who should have looked this long ago are gone.
local WAITER_GONE_MS = 60000

-- Tells a waiter something; it waits no more. Whether it was heard, by however many: a line of a
-- client that is dead may be counted beside its new one, for as long as its end is not told. nil when
-- this user may tell nobody anything: then it waits on, for others.
local function tell(q, client, message)
  local heard = redis.pcall('SPUBLISH', channel(q, client), message)
  if type(heard) ~= 'number' then
    return nil
  end
  redis.pcall('ZREM', q.waiters, client)
  return heard > 0
end

-- Tells up to `n` waiters that there is work, or is about to be. Who does not hear is gone. Returns
-- whether nobody waits any more, or can be told.
local function wake(q, n)
  local gone = 0
  while n > 0 and gone < CHUNK do
    local waiters = redis.pcall('ZRANGE', q.waiters, 0, math.min(n, CHUNK) - 1)
    if waiters.err or #waiters == 0 then
      return true
    end
    for _, client in ipairs(waiters) do
      local heard = tell(q, client, 'wake')
      if heard == nil then
        return true
      end
      n, gone = n - (heard and 1 or 0), gone + (heard and 0 or 1)
    end
  end
  return false
end

-- Tells up to `n` of those waiters that there are suspects who do take them.
local function wake_for_suspects(q, n)
  local waiters = redis.pcall('ZRANGE', q.waiters, 0, CHUNK - 1, 'WITHSCORES')
  for i = 1, waiters.err and 0 or #waiters, 2 do
    if n > 0 and tonumber(waiters[i + 1]) % 1 < 0.5 and tell(q, waiters[i], 'wake') then
      n = n - 1
    end
  end
end

-- When the first job is due, which may be long ago. nil for never.
local function next_job(q)
  local head = redis.pcall('ZRANGE', q.waiting, 0, 0, 'WITHSCORES')
  local at = not head.err and not q.paused and tonumber(head[2] or nil) or nil
  if at and at <= q.time then
    at = math.min(at, q.now) -- due, also when the clock was set back
  end
  return at
end

-- When the next one is due of those that are not yet. nil for never.
local function next_to_come(q)
  local after = string.format('(%.17g', q.time)
  local head = redis.pcall('ZRANGE', q.waiting, after, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return not head.err and not q.paused and tonumber(head[2] or nil) or nil
end

-- Not more than it takes to know: there may be many of them.
local function is_suspect(info)
  local record = info and info:find('suspect', 1, true) and unpack_table(info)
  return record and record.suspect == true
end

local function begins_with_a_suspect(q)
  local head = redis.pcall('ZRANGE', q.waiting, 0, 0)
  local info = not head.err and head[1] and redis.pcall('HGET', q.info, head[1])
  return type(info) == 'string' and is_suspect(info)
end

local function any_leases(q)
  local held = q.leases and redis.pcall('ZCARD', q.leases)
  return type(held) == 'number' and held > 0
end

-- When somebody has to look for a lease that runs out at `expiry`: before that, too, if jobs are leased and
-- nobody was heard since long before, or it would seem that the server was away.
local function next_word(q, expiry)
  local from = q.heard or q.now
  if expiry - from > HEARD_EVERY_MS and any_leases(q) then
    return math.max(from, expiry - 2 * HEARD_EVERY_MS) + HEARD_EVERY_MS
  end
  return expiry
end

-- When somebody has to look next: for a job that comes due, `at` that time, or for a lease. nil for never.
local function next_event(q, at)
  local first_out = q.clients and redis.pcall('ZRANGE', q.clients, 0, 0, 'WITHSCORES') or {}
  local expiry = not first_out.err and tonumber(first_out[2] or nil) or nil
  if expiry then
    if in_grace(q) and expiry > q.gap_from then
      expiry = math.max(expiry, q.grace_until)
    end
    if not at or at > q.now then
      expiry = next_word(q, expiry)
    end
    at = math.min(at or expiry, expiry)
  end
  return at
end

-- Sees to it that somebody who waits looks in time for what happens next. For what is due
-- already somebody was woken, and looks; but those who pass over suspects sleep on while some are.
local function watch(q)
  if q.nobody_waits then
    return
  end
  local first = redis.pcall('ZRANGE', q.waiters, 0, 0, 'WITHSCORES')
  if first.err or not first[2] then
    return
  end
  local at = next_job(q)
  if at and at <= q.time and begins_with_a_suspect(q) then
    at = next_to_come(q)
  end
  at = next_event(q, at)
  -- A waiter sleeps for whole milliseconds, and looks up to one later than it was told; who takes by hand
  -- stands a quarter behind that.
  if at and at > q.time and at < tonumber(first[2]) - 1.25 then
    wake(q, 1)
  end
end

-- At the end of a call: as many as became due in it, and whoever keeps the time.
local function wake_for(q)
  if q.due and wake(q, q.due) then
    return
  end
  if q.due_suspects then
    wake_for_suspects(q, q.due_suspects)
  end
  watch(q)
end

local function made_due(q, score, suspect)
  if score <= q.time then
    local kind = suspect and 'due_suspects' or 'due'
    q[kind] = (q[kind] or 0) + 1
  end
end

return {
  WAITER_GONE_MS = WAITER_GONE_MS, tell = tell, wake = wake, wake_for_suspects = wake_for_suspects,
  next_job = next_job, next_to_come = next_to_come, is_suspect = is_suspect,
  next_event = next_event, watch = watch, wake_for = wake_for, made_due = made_due,
}
