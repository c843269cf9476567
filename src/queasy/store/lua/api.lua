-- The functions that are registered, and nothing else. Of each: the keys it is given (see
-- NAMES for their order; "all" are the first QUEUE_KEYS), its arguments after `now` (empty, but in tests), its reply, and
-- what it changes. Times and durations are milliseconds.

local NAMES, QUEUE_KEYS, FAIL_KEYS, CHUNK = keys.NAMES, keys.QUEUE_KEYS, keys.FAIL_KEYS, keys.CHUNK
local refuse, open, dead_line = keys.refuse, keys.open, keys.dead_line
local read_stats = stats.read_stats
local new_batch = batch.new
local unpack_table, read_info, read_active = job.unpack_table, job.read_info, job.read_active
local SWEPT, alive, is_overtaken = client.SWEPT, client.alive, client.is_overtaken
local note_request, cancels_of, bump = client.note_request, client.cancels_of, client.bump
local answered = idempotency.answered
local wake, wake_for_suspects, wake_for = waking.wake, waking.wake_for_suspects, waking.wake_for
local cancel = cancel.cancel
local dispatch = dispatch.dispatch
local trim, requeue, drop = records.trim, records.requeue, records.drop
local wake_all = endings.wake_all
local settle = settle.settle
local leased_to, same_again, next_in = take.leased_to, take.same_again, take.next_in
local is_due, pass_on, sleep_on, stand_by = take.is_due, take.pass_on, take.sleep_on, take.stand_by
local take = take.take
local hand_out_or_wake = handoff.hand_out_or_wake
local evict, sweep = sweep.evict, sweep.sweep
local get, LISTS, counts, clients = inspect.get, inspect.LISTS, inspect.counts, inspect.clients
local TYPES, audit = audit.TYPES, audit.audit
local rest, count_arg, client_arg = arguments.rest, arguments.count_arg, arguments.client_arg
local kind_arg, call_arg = arguments.kind_arg, arguments.call_arg
local finishes_arg = arguments.finishes_arg

-- A table, because Lua has room for 200 locals only.
local API = {}

local VERSION = { 1, 4 } -- protocol, revision: a loader never replaces a higher revision

-- Puts jobs of `width` arguments each, and tells whoever waits; unless this is the last call of a
-- caller again, which is answered as it was. Of the queue `n` keys are given.
local function dispatch_once(keys, argv, n, width, tell_who_waits)
  local q = open(keys, 1, argv[1], n)
  local call, last = call_arg(q, keys, n, argv)
  local before = call and answered(q, call, (last - 1) / width)
  if before then
    return before
  end
  local replies = dispatch(q, argv, 2, last, width, call)
  tell_who_waits(q)
  return replies
end

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
  local q = open(keys, 1, argv[1])
  local client, lease = client_arg(argv[2]), count_arg(argv[3], 'the lease')
  if redis.call('HGET', q.requests, client) == SWEPT then
    return 'lost'
  end
  local batch = new_batch()
  batch:add(q.clients, client, q.now + lease, redis.call('ZSCORE', q.clients, client))
  if argv[4] ~= '' then
    batch:set(q.workers, client, argv[4], redis.call('HGET', q.workers, client))
  end
  batch:commit(q)
  return 'ok'
end

-- Sweeps, then takes jobs for a client that is alive: what became of it, and the jobs.
local function sweep_and_take(q, client, expiry_in, limit, id, passes)
  local one_lease = client:byte(1) == 126 -- '~'
  local expiry, request = alive(q, client)
  if not expiry and (request or not one_lease) then
    return 'lost', {}
  end
  if expiry and tonumber(expiry) <= dead_line(q) then
    bump(q, expiry_in, { client }) -- it asks, so it lives: renew before the sweep sees it
    expiry = redis.call('ZSCORE', q.clients, client)
  end
  sweep(q)
  local same, first, last, packed = tostring(request or ''):match('^(%S+) (%d+) (%d+) ?(.*)$')
  if one_lease and expiry then
    return 'ok', same_again(q, client, leased_to(q, client), 0, math.huge)
  elseif same and same == id then
    local ids = unpack_table(packed) or leased_to(q, client)
    return 'ok', same_again(q, client, ids, tonumber(first), tonumber(last))
  elseif same and is_overtaken(id, same) then
    return 'overtaken', {} -- most likely nobody hears this: what it took would be nobody's
  end
  if limit == 0 and id ~= '' and not one_lease then
    note_request(q, client, id, request)
  end
  if q.paused then
    return 'paused', {}
  elseif limit == 0 then
    return 'ok', {}
  end
  local asks = { client = client, old_expiry = expiry, old_request = request, request = not one_lease and id or '' }
  return 'ok', take(q, asks, q.now + expiry_in, limit, passes)
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
  local q = open(keys, 1, argv[1])
  local client, lease = client_arg(argv[2]), count_arg(argv[3], 'the lease')
  local limit = count_arg(argv[4], 'the limit', CHUNK)
  local waits = count_arg(argv[7], 'how long it waits')
  local ends = count_arg(argv[8], 'the leases to end', CHUNK)
  local ways, finishes = argv[9 + 5 * ends] or '', finishes_arg(argv[10 + 5 * ends], ends)
  local passes, by_hand = ways:find('pass', 1, true) ~= nil, ways:find('hand', 1, true) ~= nil
  local settled, lost = settle(q, argv, 9, ends, finishes, client:byte(1) ~= 126 and client)
  local state, jobs = sweep_and_take(q, client, lease, limit, argv[5], passes)
  local sleeps = waits > 0 and #jobs == 0 and state ~= 'lost'
  if sleeps and limit == 0 and is_due(q, passes) then
    sleeps = false -- it has no room for what is due: it asked, and is told
  end
  local held = 0
  if sleeps then
    held = sleep_on(q, client, q.now + 2 * waits + lease)
  end
  local wants_to_know = limit == 0 or #jobs < limit * 5
  local next_look = wants_to_know and state ~= 'lost' and next_in(q, passes) or -1
  if argv[6] ~= '' then
    local look_in = next_look >= 0 and math.min(next_look, waits) or waits
    local waiter = argv[6] == client and client or client_arg(argv[6])
    stand_by(q, waiter, sleeps and q.now + look_in, passes, by_hand)
  end
  wake_all(q)
  if q.passed then
    wake_for_suspects(q, 1) -- this one may have been woken in place of one who takes them
  end
  local no_use = limit == 0 and waits == 0 and state == 'ok'
  local cut_short = #jobs > 0 and next_look == 0
  if no_use or cut_short then
    pass_on(q)
  end
  local cancels = cancels_of(q, client)
  if not argv[10 + 5 * ends] then -- it is of an older revision, and counts what it is told
    return { state, next_look, settled, jobs, cancels }
  end
  return { state, next_look, settled, jobs, cancels, lost, held }
end

-- settle: end leases.
--   keys   all, and the fail queue's
--   args   verb, id, token, when, error of each. Verbs: finish, retry, timeout, fail,
--          release, cancel, broken. when: '' (backoff), '+ms', or a time; retry and timeout only
--   reply  finished | retried | timed_out | failed | released | cancelled | broken |
--          postponed (broken, but there is no room in that record) | lost of each
--   writes all; a repeat answers lost
function API.settle(keys, argv)
  local q = open(keys, 1, argv[1])
  local n = (#argv - 1) / 5
  if n ~= math.floor(n) or n < 1 or n > CHUNK then
    refuse('expected five arguments for each of 1 to 1000 leases')
  end
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
  local q = open(keys, 1, argv[1])
  local clients = rest(argv, 3)
  for _, client in ipairs(clients) do
    client_arg(client)
  end
  local replies = bump(q, count_arg(argv[2], 'the lease'), clients)
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
  local q = open(keys, 1, argv[1])
  local token, _, client, cancelled = read_active(redis.call('HGET', q.active, argv[2]) or '')
  local expiry = token == argv[3] and alive(q, client)
  if not expiry then
    return 'lost'
  end
  local until_ = q.now + count_arg(argv[4], 'the lease')
  if client:byte(1) ~= 126 and until_ < tonumber(expiry) then
    until_ = tonumber(expiry) -- a client with other jobs is not cut short for one of them
  end
  local batch = new_batch()
  batch:add(q.clients, client, until_, expiry)
  batch:commit(q)
  return cancelled and 'cancel' or 'ok'
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
  local q = open(keys, 1, argv[1])
  local verb, ids, started = argv[3], rest(argv, 4), nil
  if verb ~= 'stall' and verb ~= 'release' then
    refuse('expected stall or release')
  end
  if #ids > 0 then
    if verb == 'release' then
      refuse('expected no ids: a client that leaves releases all of its jobs')
    end
    started = {}
    for _, id in ipairs(ids) do
      started[id] = true
    end
  end
  local reply = evict(q, client_arg(argv[2]), verb == 'stall' and 'death' or verb, started)
  wake_all(q)
  pass_on(q) -- it may have been woken, and not have looked
  return reply
end

-- configure: what holds for the whole queue. '' leaves a setting as it is.
--   keys   all
--   args   limits (a map of options), fail_handler (1, 0), failed_limit, broken_limit, paused (1, 0)
--   reply  ok
--   writes meta; failed and broken are trimmed; resume wakes clients that wait
function API.configure(keys, argv)
  local q = open(keys, 1, argv[1])
  local batch = new_batch()
  if argv[2] ~= '' and not read_info(cmsgpack.pack({ options = unpack_table(argv[2]) or 0 })) then
    refuse('expected limits as a map of numbers')
  end
  local names = { 'limits', 'fail_handler', 'failed_limit', 'broken_limit', 'paused' }
  for i, name in ipairs(names) do
    local value = argv[i + 1]
    if value ~= '' then
      if i > 1 then
        count_arg(value, name)
      end
      batch:set(q.meta, name, value, redis.call('HGET', q.meta, name))
    end
  end
  for i, kind in ipairs({ 'failed', 'broken' }) do
    if argv[i + 3] ~= '' then
      trim(q, batch, kind, tonumber(argv[i + 3]), 0, {})
    end
  end
  batch:commit(q)
  if argv[6] == '0' then
    wake(q, CHUNK)
  end
  return 'ok'
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
  local kind = redis.call('TYPE', keys[6]).ok
  if kind ~= 'none' and kind ~= 'hash' then -- `open` could not read it
    return { { 'key meta is a ' .. kind .. ', expected a hash' }, {}, {} }
  end
  return audit(open(keys, 1, argv[1], #NAMES), count_arg(argv[2], 'the offset'), count_arg(argv[3], 'the limit'))
end

-- version: { protocol, revision }. No keys, no arguments.
function API.version()
  return VERSION
end

-- Raises again what `pcall` caught: it makes a text of an error, and its code word must stay in
-- front. The server does not say which key has the wrong type: that one is named.
local function explain(problem, keys)
  local text = tostring(type(problem) == 'table' and problem.err or problem)
  if text:find('WRONGTYPE', 1, true) then
    for _, key in ipairs(keys) do
      local kind, expected = redis.call('TYPE', key).ok, TYPES[key:match('[^:]*$')]
      if expected and kind ~= 'none' and kind ~= expected then
        error({ err = 'WRONGTYPE key ' .. key .. ' is a ' .. kind .. ', expected a ' .. expected })
      end
    end
  end
  error({ err = text:match('^%u+ ') and text or 'ERR ' .. text })
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
