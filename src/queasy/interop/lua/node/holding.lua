-- Active jobs: which client holds which, and until when.
--
-- A job is held by the client whose set of checkouts has its id. Only that client can end it.

local FLAGS, has, increment = records.FLAGS, records.has, records.increment
local waiting_job, active_job = records.waiting_job, records.active_job
local checkouts, score_of, reach = records.checkouts, records.score_of, records.reach
local run_at_of, set_run_at = records.run_at_of, records.set_run_at
local dispatch, unblock, put_back = waiting.dispatch, waiting.unblock, waiting.put_back

-- The most jobs that one call takes, and the most dead clients and their jobs that it sweeps. The
-- next call continues.
local MAX_TAKEN = 1000
local MAX_DEAD_CLIENTS = 20
local MAX_STALLED = 100
-- How often a dequeue looks for more jobs, if it finds entries that cannot be taken.
local MAX_PAGES = 10

-- The expiry of a client that one call could not sweep completely. Without it, a heartbeat would
-- revive a client that has lost some of its jobs.
local BEING_SWEPT = -1

local function expiry_of(q, client)
  local score = redis.call('ZSCORE', q.expiry, client)
  return score and score.double
end

local function set_expiry(q, client, expiry)
  redis.call('ZADD', q.expiry, expiry, client)
end

local function holds(q, id, client)
  local key = checkouts(q, client)
  return has(q, key, 'set') and redis.call('SISMEMBER', key, id) == 1
end

-- Ends the hold of a client; false if it has none.
local function let_go(q, id, client)
  if not holds(q, id, client) then
    return false
  end
  reach(q, id)
  redis.call('SREM', checkouts(q, client), id)
  return true
end

-- Returns up to `most` jobs of a dead client, and forgets the client if that was all. Returns how
-- many jobs it looked at.
local function sweep_client(q, client, now, most)
  local key, ids = checkouts(q, client), {}
  if has(q, key, 'set') then
    ids = redis.call('SRANDMEMBER', key, most)
    for _, id in ipairs(ids) do
      reach(q, id)
      redis.call('SREM', key, id)
      local active = active_job(q, id)
      if has(q, active, 'hash') then
        increment(active, 'stall_count')
      end
      put_back(q, id, now)
    end
  end
  if redis.call('EXISTS', key) == 1 then
    set_expiry(q, client, BEING_SWEPT)
  else
    redis.call('ZREM', q.expiry, client)
  end
  return #ids
end

-- Returns the jobs of clients whose heartbeat is late.
local function sweep(q, now)
  local left = MAX_STALLED
  local dead = redis.call('ZRANGE', q.expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, MAX_DEAD_CLIENTS)
  for _, client in ipairs(dead) do
    if left == 0 then
      return
    end
    left = left - sweep_client(q, client, now, left)
  end
end

-- Makes a due job active. Returns its record; nil if it cannot be taken, and then it is not due any
-- more.
local function take_one(q, client, id)
  local key, active = waiting_job(q, id), active_job(q, id)
  if has(q, active, 'hash') then -- another library left it unblocked
    set_run_at(q, id, run_at_of(score_of(q, id)), true)
    return nil
  end
  redis.call('ZREM', q.key, id)
  if not has(q, key, 'hash') then
    return nil -- there is nothing to run
  end
  redis.call('RENAME', key, active)
  redis.call('SADD', checkouts(q, client), id)
  redis.call('HDEL', active, unpack(FLAGS))
  redis.call('HSET', active, 'id', id)
  redis.call('HSETNX', active, 'retry_count', '0')
  redis.call('HSETNX', active, 'stall_count', '0')
  return redis.call('HGETALL', active)
end

local function take(q, client, now, limit)
  local jobs = {}
  for _ = 1, MAX_PAGES do
    local ids = redis.call('ZRANGE', q.key, 0, now, 'BYSCORE', 'LIMIT', 0, limit - #jobs)
    for _, id in ipairs(ids) do
      reach(q, id) -- all of them before the first is taken
    end
    for _, id in ipairs(ids) do
      jobs[#jobs + 1] = take_one(q, client, id)
    end
    if #ids == 0 or #jobs >= limit then
      break
    end
  end
  return jobs
end

local function dequeue(q, client, now, expiry, limit)
  if expiry_of(q, client) ~= BEING_SWEPT then
    set_expiry(q, client, expiry) -- before the sweep: a client that calls is alive
  end
  sweep(q, now)
  local swept = expiry_of(q, client)
  if swept == BEING_SWEPT then
    return {} -- its other jobs return first
  elseif not swept then
    set_expiry(q, client, expiry)
  end
  has(q, checkouts(q, client), 'set') -- so that it can take ids
  limit = math.min(math.floor(limit), MAX_TAKEN)
  return limit > 0 and take(q, client, now, limit) or {}
end

local function bump(q, client, now, expiry)
  local old = expiry_of(q, client)
  local alive = old ~= nil and old ~= BEING_SWEPT
  if alive then
    set_expiry(q, client, expiry)
  end
  sweep(q, now)
  return alive and 1 or 0
end

local function finish(q, id, client)
  if not let_go(q, id, client) then
    return 0
  end
  redis.call('DEL', active_job(q, id))
  unblock(q, id)
  return 1
end

local function retry(q, id, client, retry_at)
  if not let_go(q, id, client) then
    return 0
  end
  local active = active_job(q, id)
  if has(q, active, 'hash') then
    increment(active, 'retry_count')
  end
  put_back(q, id, retry_at)
  return 1
end

local function fail(q, fail_queue, id, client, fail_id, fail_data, flags)
  if not holds(q, id, client) then
    return 0
  end
  reach(q, id)
  dispatch(fail_queue, fail_id, 0, fail_data, flags)
  return finish(q, id, client)
end

return {
  dequeue = dequeue,
  bump = bump,
  finish = finish,
  retry = retry,
  fail = fail,
}
