-- Waiting jobs: dispatched, cancelled, blocked, and put back after a run.
--
-- A job is blocked while a job of the same id is active. Its record then has the flags of its
-- dispatch.

local FLAGS, RUN_AT_FLAGS, flags_of = records.FLAGS, records.RUN_AT_FLAGS, records.flags_of
local has, merged, reach = records.has, records.merged, records.reach
local waiting_job, active_job = records.waiting_job, records.active_job
local score_of, run_at_of, set_run_at = records.score_of, records.run_at_of, records.set_run_at

-- The flags in the record of a blocked job. Another program may have written anything there: what
-- is not a flag counts as absent.
local function stored_flags(key)
  local stored = redis.call('HMGET', key, unpack(FLAGS))
  return flags_of(stored[1], RUN_AT_FLAGS[stored[2]], stored[3])
end

-- When a job runs that is dispatched again: `old` is nil for a new one.
local function chosen(old, new, update)
  if not old or update == 'true' then
    return new
  elseif update == 'ifLater' then
    return math.max(old, new)
  elseif update == 'ifEarlier' then
    return math.min(old, new)
  end
  return old
end

local function set_fields(key, update, ...)
  local fields = { ... }
  for at = 1, #fields, 2 do
    redis.call(update == 'true' and 'HSET' or 'HSETNX', key, fields[at], fields[at + 1])
  end
end

-- Adds a waiting job, or updates the one of this id.
local function dispatch(q, id, run_at, data, flags)
  reach(q, id)
  local key, score = waiting_job(q, id), score_of(q, id)
  local blocked = has(q, active_job(q, id), 'hash')
  if has(q, key, 'hash') and not score then
    redis.call('DEL', key) -- left over: a job without a score is not waiting
  end
  if blocked then
    local held = score and merged(stored_flags(key), flags) or flags
    for _, flag in ipairs(FLAGS) do
      redis.call('HSET', key, flag, held[flag])
    end
  else
    redis.call('HDEL', key, unpack(FLAGS))
  end
  redis.call('HSET', key, 'id', id)
  if data then
    set_fields(key, flags.update_data, 'data', data)
  end
  set_fields(key, flags.reset_counts, 'retry_count', '0', 'stall_count', '0')
  local old = score and run_at_of(score)
  set_run_at(q, id, chosen(old, run_at, flags.update_run_at), blocked)
end

local function cancel(q, id)
  reach(q, id)
  local removed = redis.call('ZREM', q.key, id)
  redis.call('DEL', waiting_job(q, id))
  return removed
end

-- Lets a blocked job run, whatever its flags say: there is no other job that they could update.
local function unblock(q, id)
  local score = score_of(q, id)
  if score and score < 0 then
    if not has(q, waiting_job(q, id), 'hash') then
      redis.call('ZREM', q.key, id)
      return
    end
    set_run_at(q, id, run_at_of(score), false)
    redis.call('HDEL', waiting_job(q, id), unpack(FLAGS))
  end
end

-- Makes the active job of this id wait again. Then it receives the dispatch that was blocked.
local function put_back(q, id, run_at)
  local key, active = waiting_job(q, id), active_job(q, id)
  if not has(q, active, 'hash') then
    unblock(q, id)
    return
  end
  local score, blocked = score_of(q, id), nil
  if has(q, key, 'hash') and score then
    blocked = { data = redis.call('HGET', key, 'data'), flags = stored_flags(key) }
  end
  redis.call('RENAME', active, key)
  redis.call('HSET', key, 'id', id)
  set_run_at(q, id, run_at, false)
  if blocked then
    dispatch(q, id, run_at_of(score), blocked.data, blocked.flags)
  end
end

return {
  dispatch = dispatch,
  cancel = cancel,
  unblock = unblock,
  put_back = put_back,
}
