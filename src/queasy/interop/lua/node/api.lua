-- The registered functions: those of Queasy for Node, as its reference table documents them. Each
-- parses its arguments and calls one module. Its header lists keys, arguments, reply and writes.
-- The name of each begins with `queasy_` on the server.
--
-- Times are milliseconds since 1970, and come from the callers. Arguments after those of the list
-- are ignored, and so are further keys.
--
-- The table leaves open what some functions reply. Here
-- - dispatch replies the id, as `dispatch` of Queasy for Node does;
-- - cancel, finish, retry and fail reply 1, or 0 if there was nothing to do;
-- - dequeue replies a list of jobs, each a map of the fields of its record in no order. A client
--   that speaks RESP2 receives each map as a list of fields and values;
-- - `expiry` is the time at which a client expires, as the scores of {queue}:expiry are;
-- - a job that is failed waits in the fail queue with run_at 0, which is the default of a dispatch.

local text_arg, number_arg, flags_of = records.text_arg, records.number_arg, records.flags_of
local open = records.open

-- Version 1 is the one that the table documents: clients may compare it.
local VERSION = 1

local API = {}

-- dispatch: add a waiting job, or update the one of this id. It is blocked while a job of
-- this id is active.
--   keys   {queue}
--   args   id, run_at, data, update_data, update_run_at (true, false, ifLater, ifEarlier),
--          reset_counts
--   reply  the id
--   writes {queue}, waiting_job
function API.dispatch(keys, argv)
  local id, run_at = text_arg(argv[1], 'an id'), number_arg(argv[2], 'run_at')
  local data = text_arg(argv[3], 'data')
  waiting.dispatch(open(keys[1]), id, run_at, data, flags_of(argv[4], argv[5], argv[6]))
  return id
end

-- dequeue: take due jobs, those with the lowest run_at first. Sweeps before that.
--   keys   {queue}
--   args   client_id, now, expiry, limit
--   reply  { id, data, retry_count, stall_count as a map } for each
--   writes {queue}, waiting_job, active_job, checkouts, expiry
function API.dequeue(keys, argv)
  local client, now = text_arg(argv[1], 'a client_id'), number_arg(argv[2], 'now')
  local expiry, limit = number_arg(argv[3], 'expiry'), number_arg(argv[4], 'limit')
  return holding.dequeue(open(keys[1]), client, now, expiry, limit)
end

-- cancel: remove a waiting job, also a blocked one.
--   keys   {queue}
--   args   id
--   reply  1 | 0 (there was none)
--   writes {queue}, waiting_job
function API.cancel(keys, argv)
  return waiting.cancel(open(keys[1]), text_arg(argv[1], 'an id'))
end

-- bump: the heartbeat of a client. Sweeps after that.
--   keys   {queue}
--   args   client_id, now, expiry
--   reply  1 | 0 (the client was swept, or never dequeued)
--   writes expiry, and what a sweep writes: {queue}, waiting_job, active_job, checkouts
function API.bump(keys, argv)
  local client, now = text_arg(argv[1], 'a client_id'), number_arg(argv[2], 'now')
  return holding.bump(open(keys[1]), client, now, number_arg(argv[3], 'expiry'))
end

-- finish: end a job as done. A blocked job of this id can run then.
--   keys   {queue}
--   args   id, client_id, now
--   reply  1 | 0 (the client does not hold the job: nothing was changed)
--   writes active_job, checkouts, {queue}, waiting_job
function API.finish(keys, argv)
  local id, client = text_arg(argv[1], 'an id'), text_arg(argv[2], 'a client_id')
  return holding.finish(open(keys[1]), id, client)
end

-- retry: let a job wait until retry_at, and count the retry. A blocked job of this id then
-- updates it, as its flags say.
--   keys   {queue}
--   args   id, client_id, retry_at, now
--   reply  1 | 0 (the client does not hold the job: nothing was changed)
--   writes active_job, checkouts, {queue}, waiting_job
function API.retry(keys, argv)
  local id, client = text_arg(argv[1], 'an id'), text_arg(argv[2], 'a client_id')
  return holding.retry(open(keys[1]), id, client, number_arg(argv[3], 'retry_at'))
end

-- fail: give a job up: dispatch a job to the fail queue, and end this one.
--   keys   {queue}, {queue}-fail
--   args   id, client_id, fail_job_id, fail_job_data, now
--   reply  1 | 0 (the client does not hold the job: nothing was changed)
--   writes active_job, checkouts; {queue} and waiting_job of both queues
function API.fail(keys, argv)
  local id, client = text_arg(argv[1], 'an id'), text_arg(argv[2], 'a client_id')
  local fail_id, fail_data = text_arg(argv[3], 'a fail_job_id'), text_arg(argv[4], 'fail_job_data')
  local q, fail_queue = open(keys[1]), open(keys[2])
  return holding.fail(q, fail_queue, id, client, fail_id, fail_data, flags_of())
end

-- version: the version of the protocol.
--   keys   none
--   args   none
--   reply  1
--   writes nothing
function API.version()
  return VERSION
end

local function register(name, callback, ...)
  redis.register_function({
    function_name = 'queasy_' .. name,
    callback = function(keys, argv)
      redis.setresp(3)
      return callback(keys, argv)
    end,
    flags = { ... },
  })
end

-- A server whose memory is full refuses dispatch. All that drains it still works.
register('dispatch', API.dispatch)
register('dequeue', API.dequeue, 'allow-oom')
register('cancel', API.cancel, 'allow-oom')
register('bump', API.bump, 'allow-oom')
register('finish', API.finish, 'allow-oom')
register('retry', API.retry, 'allow-oom')
register('fail', API.fail, 'allow-oom')
register('version', API.version, 'no-writes')
