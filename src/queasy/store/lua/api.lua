-- The registered functions. Each parses its arguments and calls one module. Its header lists:
--   keys   how many it needs, in the order of keys.lua: those of a producer (PRODUCER_KEYS), all of
--          the queue, or all and the first of its fail queue. More keys are accepted
--   args   its arguments, in order
--   reply  what it returns
--   writes what it changes
-- Times and durations are milliseconds.

local PRODUCER_KEYS, QUEUE_KEYS, CHUNK = keys.PRODUCER_KEYS, keys.QUEUE_KEYS, keys.CHUNK
local refuse, open_queue, open_calls = keys.refuse, keys.open_queue, keys.open_calls
local waiter_info_key = keys.waiter_info_key
local read_stats = stats.read_stats
local new_batch = batch.new
local rest_args, count_arg = arguments.rest_args, arguments.count_arg
local client_arg, kind_arg, call_arg = arguments.client_arg, arguments.kind_arg, arguments.call_arg
local flag_arg, lease_arg = arguments.flag_arg, arguments.lease_arg
local clients_arg, group_count = arguments.clients_arg, arguments.group_count
local dequeue_arg = arguments.dequeue_arg
local bump, register_client, extend_lease = client.bump, client.register_client, client.extend_lease
local earlier_reply = idempotency.earlier_reply
local wake_after_call, next_event_at = waking.wake_after_call, waking.next_event_at
local ms_until = waking.ms_until
local cancel = cancel.cancel
local dispatch_once = dispatch.dispatch_once
local trim, requeue, drop = records.trim, records.requeue, records.drop
local configure, destroy = settings.configure, settings.destroy
local wake_all = endings.wake_all
local settle = settle.settle
local hand_off_or_wake = handoff.hand_off_or_wake
local evict, sweep = sweep.evict, sweep.sweep
local forward_wake_up, dequeue = dequeue.forward_wake_up, dequeue.dequeue
local get, LISTS, counts, clients = inspect.get, inspect.LISTS, inspect.counts, inspect.clients
local leases_of = inspect.leases_of
local meta_problem, audit = audit.meta_problem, audit.audit
local explain = failure.explain

local API = {}

local VERSION = { 1, 11 } -- protocol, revision: a loader never replaces a higher revision

-- dispatch: create or update jobs.
--   keys   of a producer
--   args   caller, number ('' and '': the call has no number); id, data, when, flags, options for
--          each job (see job.lua)
--   reply  created | updated | blocked | unchanged for each; exists (it is to be absent, and is
--          not); active | absent (it is to wait, and does not)
--   writes waiting, data, info, blocked, calls, callers; wakes waiters. A repeat of the caller's
--          last call gets the same reply and changes nothing
function API.dispatch(keys, argv)
  return dispatch_once(keys, argv, 5, wake_after_call)
end

-- put: dispatch of jobs that have only an id and data, as most do.
--   keys   of a producer; up to broken_at, or more, if it may hand off
--   args   caller, number; id, data for each job
--   reply  as dispatch
--   writes as dispatch; with these keys it may hand off one due job, and so lease it to a waiter
function API.put(keys, argv)
  return dispatch_once(keys, argv, 2, hand_off_or_wake)
end

-- cancel: remove waiting jobs and blocked dispatches, request that runs stop.
--   keys   all
--   args   caller, number; running (1, 0); id ...
--   reply  cancelled | requested | active | absent for each
--   writes waiting, data, info, blocked, calls, callers; with running: active, cancels, and
--          notifies the holder. A repeat is answered as in dispatch
function API.cancel(keys, argv)
  local q = open_queue(keys)
  local call, running = call_arg(q, argv), flag_arg(argv[3], 'running')
  local ids = rest_args(argv, 4)
  return call and earlier_reply(q, call, #ids) or cancel(q, ids, running, call)
end

-- register: create a client, as a worker or a consumer ('~~…'). Only this, and a dequeue for a
-- client made for one lease ('~…'), creates one.
--   keys   all
--   args   client, lease, worker (a description; '' for none)
--   reply  ok | lost (it was swept: register under a new id)
--   writes clients, workers
function API.register(keys, argv)
  local lease_ms = lease_arg(argv[2], 'the lease')
  return register_client(open_queue(keys), client_arg(argv[1]), lease_ms, argv[3])
end

-- dequeue: end leases, sweep, and take due jobs, in one round trip.
--   keys   all, and the fail queue's
--   args   caller, number (for a client made for one lease, '~…'. Once this call, or a later one of
--          the caller, was carried out, a copy that arrives late is overtaken: it takes nothing),
--          client, lease,
--          limit (0: take no jobs. If the client waits, the reply or a wake-up says when a job is
--          due. If it does not wait and a job is due, another client is woken),
--          request (a repeat of the last request returns the same batch. If requests are numbers,
--          a request is overtaken if a higher one took jobs or had limit 0: it takes nothing. A
--          client '~…' is made for one dequeue, and its name is its request. A consumer, '~~…',
--          numbers its requests),
--          waiter (the client to wake when there is work),
--          waits (how long it sleeps if it gets nothing, unless the reply says to sleep longer,
--          because two others keep the time; 0: it does not sleep),
--          number of leases to end, then verb, id, token, record of each: see settle;
--          words, or '': beside=n (its process has n other jobs: suspects that may not have as many
--          companions are skipped), hand (while it waits, jobs may be leased to it and sent to it);
--          packed list of id, token of each finished lease, or '': most calls only finish
--   reply  { ok | lost | paused | overtaken,
--            next_in: when it is to dequeue again, if it becomes a waiter; else when there is a
--            reason to, or -1,
--            { status of each lease to end },
--            { id, token, run_at, data, info of each job }, { id, token of each requested cancel },
--            { number in the packed list of each lease that was lost },
--            how many leases the client holds, if it becomes a waiter, else 0. If it knows of
--            fewer, the others were handed to it in messages that were lost,
--            how many companions a suspect that it skipped may have: the most of any, or -1 }
--   writes all; a client that gets nothing, holds nothing and waits has its lease extended
function API.dequeue(keys, argv)
  local q = open_queue(keys)
  return dequeue(q, dequeue_arg(argv), argv, call_arg(q, argv))
end

-- settle: end leases.
--   keys   all, and the fail queue's
--   args   verb, id, token, record of each. Verbs: finish, retry, timeout, fail, release, cancel,
--          broken, death (the death of the client was observed). The record is '' or a packed map
--          of when ('+ms', or a time; for retry and timeout; none: after the backoff), error (a
--          map), and for a death started (how many jobs of all queues ran in that process)
--   reply  finished | retried | timed_out | failed | released | cancelled | broken | stalled |
--          postponed (broken, but that record is full) | lost for each
--   writes all, or nothing if it is refused: see `count_given_up`; a repeat replies lost
function API.settle(keys, argv)
  local n = group_count(argv, 1, 4, 'leases')
  local q = open_queue(keys)
  local settled = settle(q, argv, 1, n)
  wake_all(q)
  return settled
end

-- bump: heartbeats.
--   keys   all, and the fail queue's
--   args   lease, client ...
--   reply  { ok | lost, { id, token of each requested cancel }, next_in } for each client; if it is
--          lost because the queue was destroyed, also `destroyed`. next_in is the same for all: ms
--          until a call is needed, because a lease may have expired; -1 if no job is leased, 0 if
--          dead clients have more jobs than one call returns
--   writes clients; sweeps
function API.bump(keys, argv)
  local lease_ms, clients = lease_arg(argv[1], 'the lease'), clients_arg(argv, 2)
  local q = open_queue(keys)
  local replies = bump(q, lease_ms, clients)
  sweep(q)
  wake_all(q)
  local next_in = ms_until(q, next_event_at(q))
  for _, reply in ipairs(replies) do
    reply[3] = next_in
  end
  return replies
end

-- extend: renew the lease of the client that holds (id, token).
--   keys   all
--   args   id, token, lease
--   reply  ok | cancel (extended, but a cancel was requested) | lost
--   writes clients
function API.extend(keys, argv)
  local lease_ms = lease_arg(argv[3], 'the lease')
  return extend_lease(open_queue(keys), argv[1], argv[2], lease_ms)
end

-- sweep: return the jobs of dead clients. Bounded in leases, clients and bytes: call again while
-- the reply is above 0.
--   keys   all, and the fail queue's
--   args   none
--   reply  leases ended, at least 1 if any client was dead
--   writes all
function API.sweep(keys, argv)
  local q = open_queue(keys)
  local ended = sweep(q)
  wake_all(q)
  return ended
end

-- evict: end one client now, and release its jobs.
--   keys   all, and the fail queue's
--   args   client
--   reply  { gone | more (repeat the call) | absent, leases ended }
--   writes all
function API.evict(keys, argv)
  local q = open_queue(keys)
  local reply = evict(q, client_arg(argv[1]))
  wake_all(q)
  forward_wake_up(q) -- the client may have been woken for a job and not have polled
  return reply
end

-- configure: write settings of the queue. The others stay as they are.
--   keys   all
--   args   a packed map of settings: limits (a map of options), fail_handler (true, false, or for
--          how many ms from now), failed_limit, broken_limit, paused (true, false)
--   reply  ok
--   writes meta; trims failed and broken; resuming wakes waiters
function API.configure(keys, argv)
  return configure(open_queue(keys), argv[1])
end

-- requeue: make failed or broken jobs wait again.
--   keys   all
--   args   caller, number; failed | broken; id ...
--   reply  requeued | exists (the id waits or is active) | absent | later (not processed, because
--          those before it were large: call again with these), for each
--   writes waiting, data, info, failed or broken, calls, callers; wakes waiters. A repeat is
--          answered as in dispatch
function API.requeue(keys, argv)
  local q = open_queue(keys)
  local call, kind, ids = call_arg(q, argv), kind_arg(argv[3]), rest_args(argv, 4)
  return call and earlier_reply(q, call, #ids) or requeue(q, kind, ids, call)
end

-- drop: remove failed or broken records.
--   keys   all
--   args   failed | broken, id ...
--   reply  how many there were
--   writes failed or broken
function API.drop(keys, argv)
  return drop(open_queue(keys), kind_arg(argv[1]), rest_args(argv, 2))
end

-- trim: keep only the newest records. Bounded: call again while the reply is above 0.
--   keys   all
--   args   failed | broken, how many to keep
--   reply  how many were dropped
--   writes failed or broken
function API.trim(keys, argv)
  local q, batch = open_queue(keys), new_batch()
  local dropped = trim(q, batch, kind_arg(argv[1]), count_arg(argv[2], 'what to keep'), 0, {})
  batch:commit(q)
  return dropped
end

-- destroy: delete the queue: its jobs, records, settings and counters. Not its fail queue.
--   keys   all
--   args   force (1, 0): also if jobs are active, which their holders lose, or clients registered
--   reply  { gone | active (nothing was deleted: jobs are active, or clients registered),
--            how many jobs are active, how many clients are alive }
--   writes deletes all keys; marks the clients that are alive; wakes waiters, which register again
function API.destroy(keys, argv)
  return destroy(open_queue(keys), flag_arg(argv[1], 'force'))
end

-- counts: how many jobs are in each state.
--   keys   all
--   args   none
--   reply  { waiting, due, active, blocked, failed, broken, clients, waiters, paused,
--            first run_at, now }
--   writes nothing
function API.counts(keys, argv)
  return counts(open_queue(keys))
end

-- get: one job in all its states.
--   keys   all
--   args   id
--   reply  a row (see inspect.lua) for each state
--   writes nothing
function API.get(keys, argv)
  return get(open_queue(keys), argv[1])
end

-- list: a page of jobs.
--   keys   all
--   args   waiting | due | scheduled | active | blocked | failed | broken, cursor, limit
--   reply  { rows, the cursor of the next page }; '' is the first page, and follows the last. A
--          page ends early after 2 MiB of payloads
--   writes nothing
function API.list(keys, argv)
  local lister = LISTS[argv[1]] or refuse('expected a state of jobs, got ' .. tostring(argv[1]))
  local limit = count_arg(argv[3], 'the limit', CHUNK)
  return { lister(open_queue(keys), argv[2], math.max(1, limit)) }
end

-- leases: a page of the leases of one client, without payloads.
--   keys   all
--   args   client, cursor, limit
--   reply  { { id, token of each }, the cursor of the next page }; '' is the first page, and
--          follows the last
--   writes nothing
function API.leases(keys, argv)
  local limit = math.max(1, count_arg(argv[3], 'the limit', CHUNK))
  return leases_of(open_queue(keys), client_arg(argv[1]), argv[2], limit)
end

-- clients: a page of clients.
--   keys   all
--   args   offset, limit
--   reply  { client, expires in ms, leases, worker } for each
--   writes nothing
function API.clients(keys, argv)
  local offset, limit = count_arg(argv[1], 'the offset'), count_arg(argv[2], 'the limit', CHUNK)
  return clients(open_queue(keys), offset, limit)
end

-- stats: the counters.
--   keys   all
--   args   none
--   reply  { kind, minute since the epoch ('' for the total), count } for each
--   writes nothing
function API.stats(keys, argv)
  return read_stats(open_queue(keys))
end

-- audit: check a page of the invariants (see audit.lua).
--   keys   all
--   args   offset, limit
--   reply  { problems, tallies, sizes }
--   writes nothing
function API.audit(keys, argv)
  local offset, limit = count_arg(argv[1], 'the offset'), count_arg(argv[2], 'the limit', CHUNK)
  local problem = meta_problem(keys)
  if problem then
    return problem
  end
  local q = open_queue(keys)
  open_calls(q)
  q.waiter_info = waiter_info_key(q)
  return audit(q, offset, limit)
end

-- version: the version of this library.
--   keys   none
--   args   none
--   reply  { protocol, revision }
--   writes nothing
function API.version()
  return VERSION
end

-- How many arguments a function has, if that number is fixed. A call with more is refused: a later
-- revision may give them a meaning, and this one would not do what the client asked for.
local ARGUMENTS = {
  register = 3, extend = 3, sweep = 0, evict = 1, configure = 1, trim = 2, destroy = 1, counts = 0,
  get = 1, list = 3, leases = 3, clients = 2, stats = 0, audit = 2, version = 0,
}

-- Refuses a call that names too few keys, or names them in another order. Revisions before 9 have
-- another key in the place of `waiter_info`.
local function check_form(keys, argv, least, arguments)
  local ninth = keys[9]
  if ninth and ninth:sub(-12) ~= ':waiter_info' then
    error({ err = 'QUEASYOLD this call names its keys in the order of a revision before 9, or in '
      .. 'no known order: update its client' })
  elseif #keys < least then
    refuse('expected the first ' .. least .. ' keys of the queue, or more, got ' .. #keys)
  elseif arguments and #argv ~= arguments then
    refuse('expected ' .. arguments .. ' arguments, got ' .. #argv)
  end
end

local function register(name, least, callback, ...)
  local arguments = ARGUMENTS[name]
  local function call(keys, argv)
    if not redis then
      redis, string, math, ipairs, tonumber, unpack, type = globals()
    end
    check_form(keys, argv, least, arguments)
    local ok, reply = pcall(callback, keys, argv)
    if not ok then
      explain(reply, keys)
    end
    return reply
  end
  local function_name = 'queasy_v1_' .. name
  loader.register_function({ function_name = function_name, callback = call, flags = { ... } })
end

-- A server whose memory is full refuses dispatch, put and requeue. All that drains it still works.
register('dispatch', PRODUCER_KEYS, API.dispatch)
register('put', PRODUCER_KEYS, API.put)
register('requeue', QUEUE_KEYS, API.requeue)
register('cancel', QUEUE_KEYS, API.cancel, 'allow-oom')
register('register', QUEUE_KEYS, API.register, 'allow-oom')
register('dequeue', QUEUE_KEYS, API.dequeue, 'allow-oom')
register('settle', QUEUE_KEYS, API.settle, 'allow-oom')
register('bump', QUEUE_KEYS, API.bump, 'allow-oom')
register('extend', QUEUE_KEYS, API.extend, 'allow-oom')
register('sweep', QUEUE_KEYS, API.sweep, 'allow-oom')
register('evict', QUEUE_KEYS, API.evict, 'allow-oom')
register('configure', QUEUE_KEYS, API.configure, 'allow-oom')
register('drop', QUEUE_KEYS, API.drop, 'allow-oom')
register('destroy', QUEUE_KEYS, API.destroy, 'allow-oom')
register('trim', QUEUE_KEYS, API.trim, 'allow-oom')
register('counts', QUEUE_KEYS, API.counts, 'no-writes')
register('get', QUEUE_KEYS, API.get, 'no-writes')
register('list', QUEUE_KEYS, API.list, 'no-writes')
register('leases', QUEUE_KEYS, API.leases, 'no-writes')
register('clients', QUEUE_KEYS, API.clients, 'no-writes')
register('stats', QUEUE_KEYS, API.stats, 'no-writes')
register('audit', QUEUE_KEYS, API.audit, 'no-writes')
register('version', 0, API.version, 'no-writes')
-- Once a newer revision is loaded, a fence (see library.py) registers this name. The server then
-- refuses to load this revision again.
register('revision_' .. VERSION[2], 0, API.version, 'no-writes')
