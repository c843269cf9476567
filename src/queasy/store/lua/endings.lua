-- The outcomes of a run. A function that ends a lease compares the token first: a client that has
-- lost its lease changes nothing, and the reply says so.

local settings_of, fail_queue_of, tick = keys.settings_of, keys.fail_queue_of, keys.tick
local schedule = keys.schedule
local count = stats.count
local read_info, write_info, join_payload = job.read_info, job.write_info, job.join_payload
local read_held, read_active, limit_of = job.read_held, job.read_active, job.limit_of
local is_spent, limits_of_queue = job.is_spent, job.limits_of_queue
local backoff, move_run_at, update_options = job.backoff, job.move_run_at, job.update_options
local reset_counts = job.reset_counts
local lease_name, lease_range = client.lease_name, client.lease_range
local forget_client, is_for_one_lease = client.forget_client, client.is_for_one_lease
local wake_after_call, count_due = waking.wake_after_call, waking.count_due
local add_record, add_broken = records.add_record, records.add_broken
local unreadable, reserve_broken = records.unreadable, records.reserve_broken
local write_records, note_finished = records.write_records, records.note_finished

local STALLED = 'the client died or froze while it ran this job (stall %.0f)'
local EXPIRED = 'the lease ran out before the job ended (expiry %.0f)'
local DIED = 'the client died while it ran this job and %.0f others'
local UNREADABLE = unreadable('the record of this job cannot be read')

-- All that the server stores about one active job; nil if its lease cannot be read.
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

-- Ends the lease of a run; `data` and `info` keep the job.
local function end_lease(q, batch, run)
  batch:del(q.active, run.id, run.active)
  batch:rem(q.leases, lease_name(run.client, run.id), '0')
  if run.cancelled then
    batch:rem(q.cancels, lease_name(run.client, run.id), '0')
  end
  if run.old_held then
    batch:del(q.blocked, run.id, run.old_held)
    if not run.held then -- it cannot be read: quarantine it, so that nothing is lost
      add_broken(q, run.id, UNREADABLE, run.old_held)
    end
  end
  -- A client that was made for one lease ends with it.
  if is_for_one_lease(run.client) then
    q.leaving = q.leaving or {}
    q.leaving[run.client] = (q.leaving[run.client] or 0) + 1
  end
end

-- The dispatch that was held until this run ended becomes a job of its own.
local function unblock(q, batch, run)
  local held = run.held
  batch:set(q.data, run.id, run.held_data, run.data)
  batch:add(q.waiting, run.id, held.run_at)
  write_info(q, batch, run.id, { dispatched_at = held.accepted, options = held.options },
    held.run_at, run.old_info)
  count_due(q, held.run_at)
end

-- Removes the job. A dispatch that was held becomes a job of its own.
local function remove(q, batch, run)
  end_lease(q, batch, run)
  if run.held then
    -- The payload is overwritten: its old value is needed to undo that.
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
    batch:del_unread(q.data, run.id)
  end
end

-- The job waits again, from `score`; a held dispatch is applied to it.
local function put_back(q, batch, run, score)
  end_lease(q, batch, run)
  local info, held = run.info, run.held
  info.dispatched_at = info.dispatched_at or run.score
  if held then
    score = move_run_at(q, score, held.low, held.high)
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
  write_info(q, batch, run.id, info, score, run.old_info)
  count_due(q, score, info.companions)
end

local function free_fail_id(fq, id)
  while redis.call('HEXISTS', fq.data, id) == 1 do
    id = id .. '+' -- another client dispatched this id
  end
  return id
end

-- Gives the job up: adds it to the failed record and, if the queue has a fail handler, dispatches a
-- job with the same payload to the fail queue. That job's id is derived from (id, token): once per
-- run.
local function give_up(q, batch, run, problem)
  local data = run.data or redis.call('HGET', q.data, run.id) or ''
  run.data = data
  local info = run.info
  local record = {
    failed_at = q.now, token = run.token, error = problem, options = info.options,
    dispatched_at = info.dispatched_at or run.score, retry_count = info.retry_count,
    stall_count = info.stall_count, timeout_count = info.timeout_count,
    expiry_count = info.expiry_count, origin = info.origin, limits = limits_of_queue(q),
  }
  if run.score ~= record.dispatched_at then
    record.run_at = run.score
  end
  add_record(q, 'failed', run.id, join_payload(record, data))
  local fq = settings_of(q).fail_handler and fail_queue_of(q)
  if fq then
    local fail_id = free_fail_id(fq, run.id .. ':' .. run.token)
    local score = tick(fq)
    record.id = run.id
    batch:set(fq.data, fail_id, data)
    batch:add(fq.waiting, fail_id, score)
    batch:set(fq.info, fail_id, cmsgpack.pack({ origin = record }))
    count(fq, 'dispatched')
    count_due(fq, score)
  end
  count(q, 'failed')
  remove(q, batch, run)
end

-- The job waits for another attempt: until the requested time, or for its backoff. It is not a
-- suspect any more, because its client survived the run.
local function put_back_later(q, batch, run, attempts, when, problem)
  run.info.error, run.info.companions = problem, nil
  if when == '' then
    when = string.format('+%.17g', backoff(q, run.info, attempts))
  end
  put_back(q, batch, run, (schedule(q, when)))
end

local ENDINGS = {}

function ENDINGS.finish(q, batch, run)
  remove(q, batch, run)
  note_finished(q, { run.id }, 1)
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
  if is_spent(q, run.info, 'max_retries', retries) then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  run.info.retry_count = retries + 1
  put_back_later(q, batch, run, retries, when, problem)
  return 'retried'
end

function ENDINGS.timeout(q, batch, run, when, problem)
  local timeouts = (run.info.timeout_count or 0) + 1
  run.info.timeout_count = timeouts
  if is_spent(q, run.info, 'max_timeouts', timeouts) then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  put_back_later(q, batch, run, timeouts - 1, when, problem)
  return 'timed_out'
end

function ENDINGS.fail(q, batch, run, _, problem)
  give_up(q, batch, run, problem)
  return 'failed'
end

-- The payload cannot be decoded: quarantines the job. If the broken record is full, the job waits
-- for its longest backoff.
function ENDINGS.broken(q, batch, run, _, problem)
  if not reserve_broken(q, run.id) then
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
  add_record(q, 'broken', run.id, join_payload(record, run.data))
  remove(q, batch, run)
  return 'broken'
end

-- The job returns to the front.
local function put_back_stalled(q, batch, run)
  put_back(q, batch, run, run.score)
  return 'stalled'
end

-- The client died or froze: the job returns to the front, until its budget of stalls is spent.
function ENDINGS.stall(q, batch, run)
  local info = run.info
  info.stall_count = (info.stall_count or 0) + 1
  local problem = {
    kind = 'stall', type = 'Stalled',
    message = string.format(STALLED, info.stall_count),
  }
  info.error = problem
  -- One expired lease says little: a host may have been lost, with everything that ran there.
  if info.stall_count >= 2 then
    info.companions = 0
  end
  count(q, 'stalled')
  if is_spent(q, info, 'max_stalls', info.stall_count) then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  return put_back_stalled(q, batch, run)
end

-- The lease of a pull client ran out: the job returns to the front. That says nothing about the
-- job, so it makes no suspect: a consumer may abandon leases on purpose.
function ENDINGS.expiry(q, batch, run)
  local info = run.info
  info.expiry_count = (info.expiry_count or 0) + 1
  local problem = {
    kind = 'expiry', type = 'Expired', message = string.format(EXPIRED, info.expiry_count),
  }
  info.error = problem
  count(q, 'expired')
  if is_spent(q, info, 'max_expiries', info.expiry_count) then
    give_up(q, batch, run, problem)
    return 'failed'
  end
  put_back(q, batch, run, run.score)
  return 'expired'
end

-- The death of the client was observed. `n` jobs ran in its process, and any of them may have
-- caused it. So each next runs in a group of at most half as many: the guilty one is alone after
-- log2(n) deaths. Only a death alone spends the budget of stalls: an innocent job never does.
function ENDINGS.death(q, batch, run, n)
  local info = run.info
  local companions = math.floor((n - 1) / 2)
  info.companions = math.min(info.companions or companions, companions)
  if n == 1 then
    return ENDINGS.stall(q, batch, run)
  end
  info.error = { kind = 'stall', type = 'Stalled', message = string.format(DIED, n - 1) }
  count(q, 'stalled')
  return put_back_stalled(q, batch, run)
end

-- Outcomes after which the job would run again. If its cancellation was requested, it is cancelled
-- instead.
local RETURNS_JOB = {
  release = true, retry = true, timeout = true, stall = true, death = true, expiry = true,
}
-- Statuses that are counted where they happen.
local COUNTED = { failed = true, stalled = true, expired = true }

local function end_run(q, batch, run, verb, when, problem)
  if run.cancelled and RETURNS_JOB[verb] then
    verb = 'cancel'
  elseif run.unreadable and verb ~= 'finish' and verb ~= 'cancel' then
    verb, problem = 'broken', UNREADABLE
  end
  local status = ENDINGS[verb](q, batch, run, when, problem)
  if not COUNTED[status] then
    count(q, status)
  end
  return status
end

-- Forgets clients that were made for one lease and hold none any more.
local function forget_leaving(q, batch)
  for client, ended in pairs(q.leaving or {}) do
    local held = redis.call('ZLEXCOUNT', q.leases, lease_range(client))
    if held <= ended then
      forget_client(q, batch, client)
    end
  end
  q.leaving = nil
end

local function commit_runs(q, batch)
  forget_leaving(q, batch)
  write_records(q, batch)
  if q.fail_queue and q.fail_queue.ticked then
    batch:commit(q, q.fail_queue)
  else
    batch:commit(q)
  end
end

-- Wakes waiters, those of the fail queue too. A call runs this after all its batches.
local function wake_all(q)
  wake_after_call(q)
  if q.fail_queue and q.fail_queue.due then
    wake_after_call(q.fail_queue)
  end
end

return {
  read_run = read_run, free_fail_id = free_fail_id, ENDINGS = ENDINGS, end_run = end_run,
  commit_runs = commit_runs, wake_all = wake_all,
}
