-- Dispatch: creates or updates jobs, or holds a dispatch until the run of the same id ends.
--
-- Most dispatches create a plain job: an id that is absent, with a payload and a time and nothing
-- else. `dispatch` collects those and writes them in bulk, without a table for each. Without the
-- bulk path a job costs the server 31 percent more instructions, from its dispatch to its end.
-- tests/store/test_paths.py compares both paths.

local BULK, LONG_ENTRY, refuse, in_chunks = keys.BULK, keys.LONG_ENTRY, keys.refuse, keys.in_chunks
local presized, open_queue, tick = keys.presized, keys.open_queue, keys.tick
local schedule = keys.schedule
local count = stats.count
local avoid_listpacks, new_batch = batch.avoid_listpacks, batch.new
local is_time, read_info, DISPATCHED_AT = job.is_time, job.read_info, job.DISPATCHED_AT
local write_info, join_payload, read_held = job.write_info, job.join_payload, job.read_held
local read_dispatch, clamp_of, move_run_at = job.read_dispatch, job.clamp_of, job.move_run_at
local update_options, reset_counts = job.update_options, job.reset_counts
local held_record, merge_held = job.held_record, job.merge_held
local call_arg, group_count = arguments.call_arg, arguments.group_count
local earlier_reply, record_call = idempotency.earlier_reply, idempotency.record_call
local count_due = waking.count_due

local function load_info(q, id, job)
  if not job.info then
    job.old_info = job.old_score and redis.call('HGET', q.info, id) or nil
    job.info = read_info(job.old_info)
    if not job.info then
      refuse('the record of job ' .. id .. ' cannot be read: see queasy audit')
    end
  end
  return job.info
end

local function create(job, d)
  job.score, job.data = d.run_at, d.data
  if d.set or not d.due then
    job.info = { dispatched_at = d.accepted, options = d.set }
    job.info_changed = true
  end
  return 'created'
end

local function update(q, job, d)
  local changed = false
  local info = load_info(q, d.id, job)
  if d.update_data then
    if job.data == nil then
      job.old_data = redis.call('HGET', q.data, d.id)
    end
    job.data = d.data
    changed = true
  end
  local score = move_run_at(q, job.score, clamp_of(d))
  if score ~= job.score then
    info.dispatched_at = info.dispatched_at or is_time(job.score) and job.score or q.now
    job.score = score
    changed, job.info_changed = true, true
  end
  if d.set then
    info.options = info.options or {}
    if update_options(info.options, d.set, d.update) then
      changed, job.info_changed = true, true
    end
  end
  if d.reset and reset_counts(info) then
    changed, job.info_changed = true, true
  end
  return changed and 'updated' or 'unchanged'
end

-- The id is active: the dispatch is held until the run ends.
local function block(q, job, d)
  if not job.held then
    job.old_held = redis.call('HGET', q.blocked, d.id)
    if job.old_held then
      job.held, job.held_data = read_held(job.old_held)
      if not job.held then
        refuse('the dispatch held for job ' .. d.id .. ' cannot be read: cancel it, then dispatch')
      end
    end
  end
  if job.held then
    job.held_data = merge_held(q, job.held, job.held_data, d)
  else
    job.held, job.held_data = held_record(d), d.data
  end
  return 'blocked'
end

local function write_job(q, batch, id, job)
  if job.held then
    batch:set(q.blocked, id, join_payload(job.held, job.held_data), job.old_held)
    return
  end
  if job.data then
    batch:set(q.data, id, job.data, job.old_data)
  end
  if job.score ~= job.old_score then
    batch:add(q.waiting, id, job.score, job.old_score)
  end
  if job.info_changed then
    write_info(q, batch, id, job.info, job.score, job.old_info)
  end
end

-- The status of a dispatch that does not apply to the job in its state; nil if it applies.
local function status_without_effect(job, d)
  if d.only_if_absent then
    return (job.active or job.score) and 'exists' or nil
  elseif d.only_if_waiting and (job.active or not job.score) then
    return job.active and 'active' or 'absent'
  end
  return nil
end

-- The general path: one dispatch of any kind. Returns its status.
local function dispatch_one(q, job, d)
  local status = status_without_effect(job, d)
  if status then
    return status
  elseif job.active then
    status = block(q, job, d)
  elseif job.score then
    status = update(q, job, d)
  else
    status = create(job, d)
  end
  count(q, status == 'created' and 'dispatched' or status)
  if not job.active and status ~= 'unchanged' then
    count_due(q, job.score)
  end
  return status
end

-- The plain jobs of a call, as arguments of the bulk writes: id and payload of each, run_at and id
-- of each, and id and info of each that is `scheduled`, which means not due yet.
local function new_plain(most)
  local values, times = presized(2 * most), presized(2 * most)
  return { n = 0, scheduled = 0, values = values, times = times, infos = {} }
end

-- Adds the info of a plain job that is not due yet.
local function add_scheduled(q, plain, id, run_at)
  local m = plain.scheduled
  plain.infos[2 * m + 1], plain.infos[2 * m + 2] = id, DISPATCHED_AT .. cmsgpack.pack(q.time)
  plain.scheduled = m + 1
  count_due(q, run_at) -- it is due if the clock was set back
end

local function create_plain(q, batch, plain)
  if plain.n > 0 then
    batch:bulk('hset', q.data, plain.values, 2 * plain.n)
    batch:bulk('zadd', q.waiting, plain.times, 2 * plain.n)
    count(q, 'dispatched', plain.n)
    q.due = (q.due or 0) + plain.n - plain.scheduled
  end
  if plain.scheduled > 0 then
    batch:bulk('hset', q.info, plain.infos, 2 * plain.scheduled)
  end
end

-- The job of an `id` that takes the general path. If this call has already created it as a plain
-- job, `at` is its place among the plain jobs.
local function general_job(id, at, active, score, plain)
  if not at then
    score = tonumber(score or nil)
    return { id = id, active = active, score = score, old_score = score }
  end
  local job = { id = id, score = plain.times[2 * at - 1], data = plain.values[2 * at] }
  for i = 1, 2 * plain.scheduled, 2 do
    if plain.infos[i] == id then
      job.old_info = plain.infos[i + 1]
      job.info = read_info(job.old_info)
    end
  end
  return job
end

-- The ids of `n` jobs. If there are many, LONG_ENTRY is added: the caller must know whether a job
-- has that id.
local function read_ids(argv, first, n, width)
  local ids = presized(n >= BULK and n + 1 or n)
  for i = 1, n do
    ids[i] = argv[first + (i - 1) * width]
  end
  if n >= BULK then
    ids[n + 1] = LONG_ENTRY
  end
  return ids
end

-- Creates or updates the jobs in argv, from the third argument on: id, data, when, flags, options
-- of each, or only id and data (`width` is 5 or 2).
local function dispatch(q, argv, width, call)
  local first, n = 3, group_count(argv, 3, width, 'jobs')
  local ids, replies = read_ids(argv, first, n, width), presized(n)
  local active, scores = in_chunks('HMGET', q.active, ids), in_chunks('ZMSCORE', q.waiting, ids)
  local jobs, others, plain = {}, {}, new_plain(n) -- an id may occur twice
  local values, times, created = plain.values, plain.times, 0
  for i = 1, n do
    local at, id = first + (i - 1) * width, ids[i]
    local job = jobs[id]
    if not job and not active[i] and not scores[i] and id ~= ''
      and (width == 2 or argv[at + 3] == '' and argv[at + 4] == '') then
      -- The bulk path.
      local when, run_at, due = width == 5 and argv[at + 2] or '', nil, true
      if when == '' then
        run_at = tick(q)
      else
        run_at, due = schedule(q, when)
      end
      values[2 * created + 1], values[2 * created + 2] = id, argv[at + 1]
      times[2 * created + 1], times[2 * created + 2] = run_at, id
      created = created + 1
      jobs[id] = created
      replies[i] = 'created'
      if not due then
        add_scheduled(q, plain, id, run_at)
      end
    else
      if not job or type(job) == 'number' then
        job = general_job(id, job, active[i], scores[i], plain)
        jobs[id], others[#others + 1] = job, job
      end
      replies[i] = dispatch_one(q, job, read_dispatch(q, argv, at, width))
    end
  end
  plain.n = created
  local batch = new_batch()
  if n >= BULK and not active[n + 1] and not scores[n + 1] and not jobs[LONG_ENTRY] then
    avoid_listpacks(q, batch, #argv[first + 1] <= 64, #others + plain.scheduled >= BULK)
  end
  create_plain(q, batch, plain)
  for _, job in ipairs(others) do
    write_job(q, batch, job.id, job)
  end
  record_call(q, batch, call, replies, created == n)
  batch:commit(q)
  return replies
end

-- Dispatches jobs of `width` arguments each, then calls `wake_up`. If the call repeats the last one
-- of its caller, it replies as that one did and changes nothing.
local function dispatch_once(keys, argv, width, wake_up)
  local q = open_queue(keys)
  local call = call_arg(q, argv)
  local before = call and earlier_reply(q, call, (#argv - 2) / width)
  if before then
    return before
  end
  local replies = dispatch(q, argv, width, call)
  q.dispatched = #replies
  wake_up(q)
  return replies
end

return {
  dispatch_once = dispatch_once,
}
