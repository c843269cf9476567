-- Dequeue: ends leases, sweeps, takes due jobs, and adds or removes the client as a waiter, in one
-- call.

local expiry_cutoff = keys.expiry_cutoff
local new_batch = batch.new
local unpack_table = job.unpack_table
local is_late, note_dequeue = idempotency.is_late, idempotency.note_dequeue
local DESTROYED, lease_expiry = client.DESTROYED, client.lease_expiry
local is_overtaken = client.is_overtaken
local record_request, lease_range = client.record_request, client.lease_range
local cancels_of, bump = client.cancels_of, client.bump
local is_for_one_lease = client.is_for_one_lease
local add_waiter, leave_waiters = waiters.add, waiters.leave
local wake_waiters, wake_for_suspects = waking.wake_waiters, waking.wake_for_suspects
local next_job_at = waking.next_job_at
local next_scheduled_at, next_event_at = waking.next_scheduled_at, waking.next_event_at
local others_keep_time, rest_ms = waking.others_keep_time, waking.rest_ms
local ms_until = waking.ms_until
local wake_all = endings.wake_all
local settle = settle.settle
local leased_to, leased_batch, find_due = take.leased_to, take.leased_batch, take.find_due
local take = take.take
local sweep = sweep.sweep

-- When the next job for this client is due; nil if there is none.
local function next_job_at_for(q, beside)
  local at = next_job_at(q)
  if beside == 0 or not at or at > q.now or #find_due(q, 1, beside) > 0 then
    return at
  end
  return next_scheduled_at(q)
end

-- Milliseconds until the client has a reason to poll; -1 if it has none.
local function next_poll_after(q, beside)
  return ms_until(q, next_event_at(q, next_job_at_for(q, beside)))
end

local function is_due(q, beside)
  local at = next_job_at_for(q, beside)
  return at and at <= q.now
end

-- Wakes a waiter if a job is due that this client does not take.
local function forward_wake_up(q)
  if is_due(q, 0) then
    wake_waiters(q, 1)
  end
end

-- Extends the lease of a client that sleeps and holds no job, so that it need not bump while it
-- sleeps. The client sleeps for `poll_in`, or for the time that it asked for, whichever is longer.
-- The new lease lasts for that time and one lease more, and not longer: if the host of the client
-- vanishes, a job that was handed to it waits until the lease ends. Returns how many leases the
-- client holds. If it holds any, nothing is extended.
local function extend_idle_lease(q, args, poll_in)
  local client = args.client
  if is_for_one_lease(client) then
    return 0
  end
  local lease_count = redis.call('ZLEXCOUNT', q.leases, lease_range(client))
  if lease_count > 0 then
    return lease_count
  end
  local expiry = q.now + math.max(poll_in, args.waits_ms) + args.lease_ms
  local batch = new_batch()
  batch:add(q.clients, client, expiry, redis.call('ZSCORE', q.clients, client))
  batch:commit(q)
  return 0
end

-- Milliseconds after which a client that sleeps polls, if no message comes first. It polls in time
-- for the next event, and after the time that it asked for at the latest. If two other waiters keep
-- the time, it rests longer, unless it was made for one lease.
local function poll_delay(q, args, event_in)
  local delay = event_in >= 0 and math.min(event_in, args.waits_ms) or args.waits_ms
  if delay == 0 or not args.waiter or not others_keep_time(q, args.waiter, q.now + delay) then
    return delay
  elseif is_for_one_lease(args.client) then
    return args.waits_ms
  end
  local rest = rest_ms(q, args.waits_ms)
  extend_idle_lease(q, args, rest)
  return rest
end

-- Sweeps, then takes jobs for a client that is alive. Returns the state of the client, and the
-- jobs. For a lost client, the third result is its mark, if it has one.
local function sweep_and_take(q, args, call)
  local client, id, limit = args.client, args.request, args.limit
  local one_lease = is_for_one_lease(client)
  local expiry, request = lease_expiry(q, client)
  if not expiry and (request or not one_lease) then
    return 'lost', {}, request
  end
  if expiry and tonumber(expiry) <= expiry_cutoff(q) then
    bump(q, args.lease_ms, { client }) -- it polls, so it is alive: renew its lease before the sweep
    expiry = redis.call('ZSCORE', q.clients, client)
  end
  sweep(q)
  -- The last request: its id, the first and the last token it took (0 0 for none), perhaps the ids.
  local last_request, first, last, packed =
    tostring(request or ''):match('^(%S+) (%d+) (%d+) ?(.*)$')
  if one_lease and expiry then
    return 'ok', leased_batch(q, client, leased_to(q, client), 0, math.huge)
  elseif call and is_late(q, call) then
    return 'overtaken', {} -- its lease has ended, and no client waits for this reply
  elseif last_request and last_request == id then
    local ids = unpack_table(packed) or leased_to(q, client)
    return 'ok', leased_batch(q, client, ids, tonumber(first), tonumber(last))
  elseif last_request and is_overtaken(id, last_request) then
    return 'overtaken', {} -- the client most likely gave this request up, and would lose its jobs
  end
  if limit == 0 and id ~= '' and not one_lease then
    record_request(q, client, id, request)
  end
  if q.paused then
    if call then
      note_dequeue(q, call)
    end
    return 'paused', {}
  elseif limit == 0 then
    return 'ok', {}
  end
  local taker = { client = client, old_expiry = expiry, old_request = request }
  taker.request, taker.call = not one_lease and id or '', call
  return 'ok', take(q, taker, q.now + args.lease_ms, limit, args.beside)
end

-- Whether the client becomes a waiter: it asked to wait, got nothing, and is alive. A client
-- without room does not wait if a job is due: the reply says so.
local function is_to_wait(q, args, state, jobs)
  if args.waits_ms == 0 or #jobs > 0 or state == 'lost' then
    return false
  end
  return args.limit > 0 or not is_due(q, args.beside)
end

-- Wakes another client if a job is due that this one did not take. A client that took a full batch
-- wakes the next one, which does the same: jobs that come due together wake as many clients as they
-- need, although only two keep the time.
local function wake_others(q, args, state, jobs)
  wake_all(q)
  if q.skipped then
    wake_for_suspects(q, 1) -- this client may have been woken in place of one that is idle
  end
  local only_asks = args.limit == 0 and args.waits_ms == 0 and state == 'ok'
  local leaves_due_jobs = #jobs > 0 and not q.no_waiters and is_due(q, args.beside)
  if only_asks or leaves_due_jobs then
    forward_wake_up(q)
  end
end

-- The whole of a dequeue. `args` is what `dequeue_arg` read; the leases to end are in `argv`. A
-- dequeue for a client that is made for it may have a `call`: its caller and number.
local function dequeue(q, args, argv, call)
  local client, limit = args.client, args.limit
  local sender = client:byte(1) ~= 126 and client -- '~'
  local settled, lost =
    settle(q, argv, args.first_ending, args.endings, args.packed_finishes, sender)
  local state, jobs, mark = sweep_and_take(q, args, call)
  args.beside = args.beside + #jobs / 5
  local waits, lease_count = is_to_wait(q, args, state, jobs), 0
  if waits then
    lease_count = extend_idle_lease(q, args, 0)
  end
  local wants_next = limit == 0 or #jobs < limit * 5 -- five values for each job
  local next_poll_in = -1
  if wants_next and state ~= 'lost' then
    next_poll_in = next_poll_after(q, args.beside)
  end
  if waits then
    next_poll_in = poll_delay(q, args, next_poll_in)
  end
  if args.waiter and waits then
    add_waiter(q, args, q.now + next_poll_in)
  elseif args.waiter then
    leave_waiters(q, args.waiter)
  end
  wake_others(q, args, state, jobs)
  local cancels = cancels_of(q, client)
  local reply = { state, next_poll_in, settled, jobs, cancels, lost, lease_count, q.skipped or -1 }
  if mark == DESTROYED then
    reply[9] = DESTROYED
  end
  return reply
end

return {
  forward_wake_up = forward_wake_up, dequeue = dequeue,
}
