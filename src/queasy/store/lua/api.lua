-- The functions that are registered, and nothing else. Of each: the keys it is given (see
-- NAMES for their order; "all" are the first QUEUE_KEYS), its arguments after `now` (empty, but in tests), its reply, and
-- what it changes. Times and durations are milliseconds.

local NAMES, QUEUE_KEYS, FAIL_KEYS, CHUNK = keys.NAMES, keys.QUEUE_KEYS, keys.FAIL_KEYS, keys.CHUNK
local refuse, open = keys.refuse, keys.open
local read_stats = stats.read_stats
local new_batch = batch.new
local rest, count_arg, client_arg = arguments.rest, arguments.count_arg, arguments.client_arg
local kind_arg, call_arg = arguments.kind_arg, arguments.call_arg
local clients_arg, group_count = arguments.clients_arg, arguments.group_count
local dequeue_arg, eviction_arg = arguments.dequeue_arg, arguments.eviction_arg
local bump, register_client, extend_lease = client.bump, client.register_client, client.extend_lease
local answered = idempotency.answered
local wake_for = waking.wake_for
local cancel = cancel.cancel
local dispatch_once = dispatch.dispatch_once
local trim, requeue, drop = records.trim, records.requeue, records.drop
local configure = settings.configure
local wake_all = endings.wake_all
local settle = settle.settle
local hand_out_or_wake = handoff.hand_out_or_wake
local evict, sweep = sweep.evict, sweep.sweep
local pass_on, dequeue = dequeue.pass_on, dequeue.dequeue
local get, LISTS, counts, clients = inspect.get, inspect.LISTS, inspect.counts, inspect.clients
local meta_problem, audit = audit.meta_problem, audit.audit
local explain = failure.explain

-- A table, because Lua has room for 200 locals only.
local API = {}

local VERSION = { 1, 5 } -- protocol, revision: a loader never replaces a higher revision

-- dispatch: put or update jobs.
--   keys   the first 8, and calls, callers or not
--   args   id, data, when, flags, options for each job (see job.lua), and caller, number
--   reply  created | updated | blocked | unchanged for each
--   writes waiting, data, info, blocked, calls, callers; wakes clients that wait. The last call
--          of a caller again is answered as it was, and changes nothing
function API.dispatch(keys, argv)
  return dispatch_once(keys, argv, FAIL_KEYS, 5, wake_for)
end

-- put: dispatch of jobs that are an id and data and nothing else, as most are.
--   keys   as dispatch; or all, and calls, callers or not
--   args   id, data for each job, and caller, number
--   reply  as dispatch
--   writes as dispatch; given all keys it may hand one job that is due to a client that waits, and
--          so take it for that one
function API.put(keys, argv)
  return dispatch_once(keys, argv, #keys < QUEUE_KEYS and FAIL_KEYS or QUEUE_KEYS, 2, hand_out_or_wake)
end

-- cancel: end the wait of jobs, drop held dispatches, ask runs to stop.
--   keys   all, and calls, callers or not
--   args   running (1, 0), id ..., and caller, number
--   reply  cancelled | requested | active | absent for each
--   writes waiting, data, info, blocked, calls, callers; with running: active, cancels, and tells
--          the holder. A repeat: as dispatch
function API.cancel(keys, argv)
  local q = open(keys, 1, argv[1])
  local call, last = call_arg(q, keys, QUEUE_KEYS, argv)
  local ids = rest(argv, 3, last)
  return call and answered(q, call, #ids) or cancel(q, ids, argv[2] == '1', call)
end

-- register: create a client. Only this, and a dequeue for a client '~…', creates one.
--   keys   all
--   args   client, lease, worker (what it tells of itself; '' for nothing)
--   reply  ok | lost (it was swept: come back under a new id)
--   writes clients, workers
function API.register(keys, argv)
  local lease_ms = count_arg(argv[3], 'the lease')
  return register_client(open(keys, 1, argv[1]), client_arg(argv[2]), lease_ms, argv[4])
end

-- dequeue: end leases, sweep, and take due jobs, in one round trip.
--   keys   all, and the fail queue's
--   args   client, lease, limit (0: takes nothing; who waits is told, or woken, when something is
--          due, who does not has no use for it and another is woken),
--          request (a repeat of the last one returns the same batch; of one who numbers them, any
--          older than the last that took jobs, or had a limit of 0, is overtaken;
--          a client '~…' is made for one dequeue and is a request id itself),
--          waiter (who to wake when there is work), waits (how long it sleeps at most when
--          it got nothing; 0: not at all), number of leases to end, then verb, id, token, when, error of each,
--          then, or not, words: pass (it leaves suspects to others), hand (while it waits, jobs
--          may be taken for it and sent to it); and a packed list of id, token of each lease that
--          is finished, or not: short for what most calls say
--   reply  { ok | lost | paused | overtaken, next_in, { ending of each lease },
--            { id, token, run_at, data, info of each job }, { id, token of each cancel },
--            { number of each in the list of finished that was lost },
--            how many leases it holds, if it is to wait: more than it knows of were handed to it, and lost };
--          the last two for those who give a list, if an empty one
--   writes all; a client that got nothing, holds nothing and waits has its lease from then
function API.dequeue(keys, argv)
  return dequeue(open(keys, 1, argv[1]), dequeue_arg(argv), argv)
end

-- settle: end leases.
--   keys   all, and the fail queue's
--   args   verb, id, token, when, error of each. Verbs: finish, retry, timeout, fail,
--          release, cancel, broken. when: '' (backoff), '+ms', or a time; retry and timeout only
--   reply  finished | retried | timed_out | failed | released | cancelled | broken |
--          postponed (broken, but there is no room in that record) | lost of each
--   writes all; a repeat answers lost
function API.settle(keys, argv)
  local n = group_count(argv, 2, 5, 'leases')
  local q = open(keys, 1, argv[1])
  local settled = settle(q, argv, 2, n, {})
  wake_all(q)
  return settled
end

-- bump: heartbeats.
--   keys   all, and the fail queue's
--   args   lease, client ...
--   reply  { ok | lost, { id, token of each cancel } } of each client
--   writes clients; sweeps
function API.bump(keys, argv)
  local lease_ms, clients = count_arg(argv[2], 'the lease'), clients_arg(argv, 3)
  local q = open(keys, 1, argv[1])
  local replies = bump(q, lease_ms, clients)
  sweep(q)
  wake_all(q)
  return replies
end

-- extend: give the client that holds (id, token) that long again.
--   keys   all
--   args   id, token, lease
--   reply  ok | cancel (extended, but somebody asked to cancel it) | lost
--   writes clients
function API.extend(keys, argv)
  local lease_ms = count_arg(argv[4], 'the lease')
  return extend_lease(open(keys, 1, argv[1]), argv[2], argv[3], lease_ms)
end

-- sweep: return the jobs of dead clients; bounded in leases, clients and bytes: call again while it
-- answers more than 0.
--   keys   all, and the fail queue's
--   reply  leases ended, at least 1 when any client was
--   writes all
function API.sweep(keys, argv)
  local q = open(keys, 1, argv[1])
  local ended = sweep(q)
  wake_all(q)
  return ended
end

-- evict: end one client now.
--   keys   all, and the fail queue's
--   args   client, stall (it died, and its jobs are suspects) | release (it leaves; not counted
--          against its jobs), with stall: the id of each job that it had started, the others are
--          released; none: all of them
--   reply  { gone | more (the same call again) | absent, leases ended }
--   writes all
function API.evict(keys, argv)
  local verb, started = eviction_arg(argv)
  local q = open(keys, 1, argv[1])
  local reply = evict(q, client_arg(argv[2]), verb, started)
  wake_all(q)
  pass_on(q) -- the client may have been woken for a job and not have polled
  return reply
end

-- configure: what holds for the whole queue. '' leaves a setting as it is.
--   keys   all
--   args   limits (a map of options), fail_handler (1, 0), failed_limit, broken_limit, paused (1, 0)
--   reply  ok
--   writes meta; failed and broken are trimmed; resume wakes clients that wait
function API.configure(keys, argv)
  return configure(open(keys, 1, argv[1]), argv)
end

-- requeue: failed or broken jobs wait again.
--   keys   all, and calls, callers or not
--   args   failed | broken, id ..., and caller, number
--   reply  requeued | exists (the id waits or runs) | absent | later (not looked at: those before
--          it were large; call again with these), for each
--   writes waiting, data, info, failed or broken, calls, callers; wakes clients that wait. A
--          repeat: as dispatch
function API.requeue(keys, argv)
  local q = open(keys, 1, argv[1])
  local call, last = call_arg(q, keys, QUEUE_KEYS, argv)
  local kind, ids = kind_arg(argv[2]), rest(argv, 3, last)
  return call and answered(q, call, #ids) or requeue(q, kind, ids, call)
end

-- drop: forget failed or broken jobs.
--   keys   all
--   args   failed | broken, id ...
--   reply  how many there were
--   writes failed or broken
function API.drop(keys, argv)
  return drop(open(keys, 1, argv[1]), kind_arg(argv[2]), rest(argv, 3))
end

-- trim: keep the newest records only; bounded, call again while it answers more than 0.
--   keys   all
--   args   failed | broken, how many to keep
--   reply  how many were dropped
--   writes failed or broken
function API.trim(keys, argv)
  local q, batch = open(keys, 1, argv[1]), new_batch()
  local dropped = trim(q, batch, kind_arg(argv[2]), count_arg(argv[3], 'what to keep'), 0, {})
  batch:commit(q)
  return dropped
end

-- counts: { waiting, due, active, blocked, failed, broken, clients, waiters, paused, first run_at, now }
function API.counts(keys, argv)
  return counts(open(keys, 1, argv[1]))
end

-- get: rows of one id, one for each state it is in (see inspect.lua).
--   args   id
function API.get(keys, argv)
  return get(open(keys, 1, argv[1]), argv[2])
end

-- list: a page of jobs.
--   args   waiting | due | scheduled | active | blocked | failed | broken, cursor, limit
--   reply  { rows, the cursor of the next page }; '' is the first page, and behind the last
function API.list(keys, argv)
  local lister = LISTS[argv[2]] or refuse('unknown state: ' .. tostring(argv[2]))
  local limit = count_arg(argv[4], 'the limit', CHUNK)
  return { lister(open(keys, 1, argv[1]), argv[3], math.max(1, limit)) }
end

-- clients: a page of clients: client, expires in ms, leases, worker.
--   args   offset, limit
function API.clients(keys, argv)
  return clients(open(keys, 1, argv[1]), count_arg(argv[2], 'the offset'), count_arg(argv[3], 'the limit', CHUNK))
end

-- stats: kind, minute since the epoch ('' for the total), count.
function API.stats(keys, argv)
  return read_stats(open(keys, 1, argv[1]))
end

-- audit: a page of the invariants (see audit.lua).
--   keys   all, and calls and callers, or those are not looked at
--   args   offset, limit
--   reply  { problems, tallies, sizes }
function API.audit(keys, argv)
  local offset, limit = count_arg(argv[2], 'the offset'), count_arg(argv[3], 'the limit')
  return meta_problem(keys) or audit(open(keys, 1, argv[1], #NAMES), offset, limit)
end

-- version: { protocol, revision }. No keys, no arguments.
function API.version()
  return VERSION
end

local function register(name, callback, ...)
  local function call(keys, argv)
    if not redis then
      redis, string, math, ipairs, tonumber, unpack, type = globals()
    end
    local ok, reply = pcall(callback, keys, argv)
    if not ok then
      explain(reply, keys)
    end
    return reply
  end
  loader.register_function({ function_name = 'queasy_v1_' .. name, callback = call, flags = { ... } })
end

-- A full server refuses dispatch and requeue; all that drains it goes on.
register('dispatch', API.dispatch)
register('put', API.put)
register('requeue', API.requeue)
register('cancel', API.cancel, 'allow-oom')
register('register', API.register, 'allow-oom')
register('dequeue', API.dequeue, 'allow-oom')
register('settle', API.settle, 'allow-oom')
register('bump', API.bump, 'allow-oom')
register('extend', API.extend, 'allow-oom')
register('sweep', API.sweep, 'allow-oom')
register('evict', API.evict, 'allow-oom')
register('configure', API.configure, 'allow-oom')
register('drop', API.drop, 'allow-oom')
register('trim', API.trim, 'allow-oom')
register('counts', API.counts, 'no-writes')
register('get', API.get, 'no-writes')
register('list', API.list, 'no-writes')
register('clients', API.clients, 'no-writes')
register('stats', API.stats, 'no-writes')
register('audit', API.audit, 'no-writes')
register('version', API.version, 'no-writes')
-- Taken by another library once there is a newer revision: this one can then not be loaded again.
register('revision_' .. VERSION[2], API.version, 'no-writes')
