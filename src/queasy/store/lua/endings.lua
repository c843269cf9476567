-- Runs: taking jobs under a lease, and ending a lease. Every way to end one compares the
-- token first; who has no lease any more changes nothing and is told so.

local settings_of, fail_queue_of, tick = keys.settings_of, keys.fail_queue_of, keys.tick
local schedule = keys.schedule
local count = stats.count
local read_info, keep_info, join, read_held = job.read_info, job.keep_info, job.join, job.read_held
local read_active, limit_of, backoff, move = job.read_active, job.limit_of, job.backoff, job.move
local update_options, reset_counts = job.update_options, job.reset_counts
local lease_of, range_of, forget = client.lease_of, client.range_of, client.forget
local wake_for, made_due = waking.wake_for, waking.made_due
local keep_failed, room_for_broken = records.keep_failed, records.room_for_broken
local keep_records = records.keep_records

local UNREADABLE = { kind = 'broken', type = 'Unreadable', message = 'the record of this job cannot be read' }

-- All that concerns one active job; nil when its lease cannot be read.
local function read_run(id, active, info, held)
  local token, score, client, cancelled = read_active(active)
  if not token then
    return nil
  end
  local run = {
    id = id, token = token, score = score, client = client, cancelled = cancelled,
    active = active, info = read_info(info), old_info = info or nil, old_held = held or nil,
  }
  if not run.info then
    run.info, run.unreadable = {}, true
  end
  if held then
    run.held, run.held_data = read_held(held)
  end
  return run
end

-- Ends the lease of a run; the job itself stays in `data` and `info`.
local function end_lease(q, batch, run)
  batch:del(q.active, run.id, run.active)
  batch:rem(q.leases, lease_of(run.client, run.id), '0')
  if run.cancelled then
    batch:rem(q.cancels, lease_of(run.client, run.id), '0')
  end
  if run.old_held then
    batch:del(q.blocked, run.id, run.old_held)
    if not run.held then -- lost to nobody: what cannot be read is set aside
      keep_failed(q, 'broken', run.id, join({ broken_at = q.now, error = UNREADABLE }, run.old_held))
    end
  end
  -- A client that was made for one lease ends with it.
  if run.client:byte(1) == 126 then -- '~'
    q.leaving = q.leaving or {}
    q.leaving[run.client] = (q.leaving[run.client] or 0) + 1
  end
end

-- The dispatch held behind a run that is over becomes a job of its own.
local function unblock(q, batch, run)
  local held = run.held
  batch:set(q.data, run.id, run.held_data, run.data)
  batch:add(q.waiting, run.id, held.run_at)
  keep_info(q, batch, run.id, { dispatched_at = held.accepted, options = held.options },
    held.run_at, run.old_info)
  made_due(q, held.run_at)
end

-- The job is over: nothing of it is kept, but a dispatch held behind it comes up.
local function remove(q, batch, run)
  end_lease(q, batch, run)
  if run.held then
    -- The payload is overwritten; it must be known to take that back.
    run.data = run.data or redis.call('HGET', q.data, run.id)
    unblock(q, batch, run)
    return
  end
  if run.old_info then
    batch:del(q.info, run.id, run.old_info)
  end
  if run.data then
    batch:del(q.data, run.id, run.data)
  else
    batch:del_last(q.data, run.id)
  end
end

-- The job waits again, from `score`; a dispatch held behind the run is applied to it.
local function put_back(q, batch, run, score)
  end_lease(q, batch, run)
  local info, held = run.info, run.held
  info.dispatched_at = info.dispatched_at or run.score
  if held then
    score = move(q, score, held.low, held.high)
    if held.update_data then
      run.data = run.data or redis.call('HGET', q.data, run.id)
      batch:set(q.data, run.id, run.held_data, run.data)
    end
    if held.update then
      info.options = info.options or {}
      update_options(info.options, held.options or {}, held.update)
    end
    if held.reset then
      reset_counts(info)
    end
  end
  batch:add(q.waiting, run.id, score)
  keep_info(q, batch, run.id, info, score, run.old_info)
  made_due(q, score, info.suspect)
end

local function free_fail_id(fq, id)
  while redis.call('HEXISTS', fq.data, id) == 1 do
    id = id .. '+' -- somebody dispatched that very id
  end
  return id
end

-- The job is given up: into the failed record and, if anybody handles failures, a job with
-- the same payload into the fail queue, whose id comes from (id, token): once per run.
local function give_up(q, batch, run, problem)
  local data = run.data or redis.call('HGET', q.data, run.id) or ''
  run.data = data
  local info = run.info
  local record = {
    failed_at = q.now, token = run.token, error = problem, options = info.options,
    dispatched_at = info.dispatched_at or run.score, retry_count = info.retry_count,
    stall_count = info.stall_count, timeout_count = info.timeout_count, origin = info.origin,
  }
  keep_failed(q, 'failed', run.id, join(record, data))
  local fq = settings_of(q).fail_handler and fail_queue_of(q)
  if fq then
    local fail_id = free_fail_id(fq, run.id .. ':' .. run.token)
    local score = tick(fq)
    record.id, record.options = run.id, nil
    batch:set(fq.data, fail_id, data)
    batch:add(fq.waiting, fail_id, score)
    batch:set(fq.info, fail_id, cmsgpack.pack({ origin = record }))
    count(fq, 'dispatched')
    made_due(fq, score)
  end
  count(q, 'failed')
  remove(q, batch, run)
end

-- The job waits for another attempt: at the time asked for, else after its backoff. Its run
-- ended by itself, and no client with it.
local function try_again(q, batch, run, attempts, when, problem)
  run.info.error, run.info.suspect = problem, nil
  if when == '' then
    when = string.format('+%.17g', backoff(q, run.info, attempts))
  end
  put_back(q, batch, run, (schedule(q, when)))
end

local ENDINGS = {}

function ENDINGS.finish(q, batch, run)
  remove(q, batch, run)
  return 'finished'
end

function ENDINGS.cancel(q, batch, run)
  remove(q, batch, run)
  return 'cancelled'
end

function ENDINGS.release(q, batch, run)
  put_back(q, batch, run, run.score)
  return 'released'
end

function ENDINGS.retry(q, batch, run, when, problem)
  local retries = run.info.retry_count or 0
  if retries >= limit_of(q, run.info, 'max_retries') then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  run.info.retry_count = retries + 1
  try_again(q, batch, run, retries, when, problem)
  return 'retried'
end

function ENDINGS.timeout(q, batch, run, when, problem)
  local timeouts = (run.info.timeout_count or 0) + 1
  run.info.timeout_count = timeouts
  if timeouts >= limit_of(q, run.info, 'max_timeouts') then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  try_again(q, batch, run, timeouts - 1, when, problem)
  return 'timed_out'
end

function ENDINGS.fail(q, batch, run, _, problem)
  give_up(q, batch, run, problem)
  return 'failed'
end

-- The payload cannot be decoded: set aside, to be looked at; where there is no room for that
-- it waits, for as long as a job waits at most between two attempts.
function ENDINGS.broken(q, batch, run, _, problem)
  if not room_for_broken(q, run.id) then
    if run.cancelled then
      return ENDINGS.cancel(q, batch, run)
    end
    run.info.error = problem
    local pause = string.format('+%.17g', limit_of(q, run.info, 'max_backoff'))
    put_back(q, batch, run, (schedule(q, pause)))
    return 'postponed'
  end
  run.data = redis.call('HGET', q.data, run.id) or ''
  local record = {
    broken_at = q.now, error = problem, options = run.info.options, origin = run.info.origin,
    dispatched_at = run.info.dispatched_at or run.score,
  }
  keep_failed(q, 'broken', run.id, join(record, run.data))
  remove(q, batch, run)
  return 'broken'
end

-- Its client died or froze: to the front, until its budget of stalls is spent.
function ENDINGS.stall(q, batch, run)
  local info = run.info
  info.stall_count = (info.stall_count or 0) + 1
  local problem = {
    kind = 'stall', type = 'Stalled',
    message = string.format('the client died or froze while it ran this job (stall %.0f)', info.stall_count),
  }
  info.error = problem
  -- A lease that ran out once says little: a host was lost, with all that ran there.
  info.suspect = info.suspect or info.stall_count >= 2 or nil
  count(q, 'stalled')
  if info.stall_count >= limit_of(q, info, 'max_stalls') then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  put_back(q, batch, run, run.score)
  return 'stalled'
end

-- Somebody saw its client die. Perhaps it was this job that killed it, so its next run is alone:
-- only the guilty spend their budget of stalls.
function ENDINGS.death(q, batch, run)
  run.info.suspect = true
  return ENDINGS.stall(q, batch, run)
end

-- What no holder may say of its own lease.
local OF_THE_DEAD = { stall = true, death = true }

-- A run somebody asked to cancel comes back in no way.
local COMES_BACK = { release = true, retry = true, timeout = true, stall = true, death = true }

local function end_run(q, batch, run, verb, when, problem)
  if run.cancelled and COMES_BACK[verb] then
    verb = 'cancel'
  elseif run.unreadable and verb ~= 'finish' and verb ~= 'cancel' then
    verb, problem = 'broken', UNREADABLE
  end
  local status = ENDINGS[verb](q, batch, run, when, problem)
  if status ~= 'failed' and status ~= 'stalled' then -- counted where they happen
    count(q, status)
  end
  return status
end

-- Clients made for one lease that hold nothing more.
local function drop_leaving(q, batch)
  for client, ended in pairs(q.leaving or {}) do
    local held = redis.call('ZLEXCOUNT', q.leases, range_of(client))
    if held <= ended then
      forget(q, batch, client)
    end
  end
  q.leaving = nil
end

local function commit_runs(q, batch)
  drop_leaving(q, batch)
  keep_records(q, batch)
  if q.fail_queue and q.fail_queue.ticked then
    batch:commit(q, q.fail_queue)
  else
    batch:commit(q)
  end
end

-- After all batches of a call.
local function wake_all(q)
  wake_for(q)
  if q.fail_queue and q.fail_queue.due then
    wake_for(q.fail_queue)
  end
end

return {
  read_run = read_run, free_fail_id = free_fail_id, ENDINGS = ENDINGS, OF_THE_DEAD = OF_THE_DEAD,
  end_run = end_run, commit_runs = commit_runs, wake_all = wake_all,
}
