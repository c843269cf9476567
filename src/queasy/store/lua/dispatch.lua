-- Dispatch: jobs are put, or updated, or held behind a run of the same id.

local CHUNK, MANY, LONG, refuse, many = keys.CHUNK, keys.MANY, keys.LONG, keys.refuse, keys.many
local room_for, open, tick, schedule = keys.room_for, keys.open, keys.tick, keys.schedule
local count = stats.count
local make_tables, new_batch = batch.make_tables, batch.new
local is_time, read_info, DISPATCHED_AT = job.is_time, job.read_info, job.DISPATCHED_AT
local keep_info, join, read_held = job.keep_info, job.join, job.read_held
local read_dispatch, clamp_of, move = job.read_dispatch, job.clamp_of, job.move
local update_options, reset_counts, hold = job.update_options, job.reset_counts, job.hold
local merge = job.merge
local call_arg = arguments.call_arg
local answered, keep_call = idempotency.answered, idempotency.keep_call
local made_due = waking.made_due

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
  if d.only_if_absent then
    return 'unchanged'
  end
  local changed = false
  local info = load_info(q, d.id, job)
  if d.update_data then
    if job.data == nil then
      job.old_data = redis.call('HGET', q.data, d.id)
    end
    job.data = d.data
    changed = true
  end
  local score = move(q, job.score, clamp_of(d))
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

-- The job is running: the dispatch is held until the run ends.
local function block(q, job, d)
  if d.only_if_absent then
    return 'unchanged'
  end
  if not job.held then
    job.old_held = redis.call('HGET', q.blocked, d.id)
    if job.old_held then
      job.held, job.held_data = read_held(job.old_held)
      if not job.held then
        refuse('the dispatch held behind job ' .. d.id .. ' cannot be read: cancel it, then dispatch')
      end
    end
  end
  if job.held then
    job.held_data = merge(q, job.held, job.held_data, d)
  else
    job.held, job.held_data = hold(d), d.data
  end
  return 'blocked'
end

local function keep(q, batch, id, job)
  if job.held then
    batch:set(q.blocked, id, join(job.held, job.held_data), job.old_held)
    return
  end
  if job.data then
    batch:set(q.data, id, job.data, job.old_data)
  end
  if job.score ~= job.old_score then
    batch:add(q.waiting, id, job.score, job.old_score)
  end
  if job.info_changed then
    keep_info(q, batch, id, job.info, job.score, job.old_info)
  end
end

-- One dispatch, whatever it is. Returns what became of it.
local function dispatch_one(q, job, d)
  local status
  if job.active then
    status = block(q, job, d)
  elseif job.score then
    status = update(q, job, d)
  else
    status = create(job, d)
  end
  count(q, status == 'created' and 'dispatched' or status)
  if not job.active and status ~= 'unchanged' then
    made_due(q, job.score)
  end
  return status
end

-- Plain jobs that are created, with nothing but a payload and a time: id and payload, run_at and id of
-- each, and id and info of those that are `scheduled`.
local function none_plain(most)
  return { n = 0, scheduled = 0, values = room_for(2 * most), times = room_for(2 * most), infos = {} }
end

-- One of them that is not due yet. It is the same as `create` and `keep`.
local function add_scheduled(q, plain, id, run_at)
  local m = plain.scheduled
  plain.infos[2 * m + 1], plain.infos[2 * m + 2] = id, DISPATCHED_AT .. cmsgpack.pack(q.time)
  plain.scheduled = m + 1
  made_due(q, run_at) -- when the clock was set back
end

local function create_plain(q, batch, plain)
  if plain.n > 0 then
    batch:all('hset', q.data, plain.values, 2 * plain.n)
    batch:all('zadd', q.waiting, plain.times, 2 * plain.n)
    count(q, 'dispatched', plain.n)
    q.due = (q.due or 0) + plain.n - plain.scheduled
  end
  if plain.scheduled > 0 then
    batch:all('hset', q.info, plain.infos, 2 * plain.scheduled)
  end
end

-- The job of `id` that is not plain, or was dispatched before in this call: `at` is its place among the
-- plain ones then.
local function other_job(id, at, active, score, plain)
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

-- Puts or updates jobs: id, data, when, flags, options of each, or id and data alone (the `width`),
-- from argv[first] to argv[last].
local function dispatch(q, argv, first, last, width, call)
  local n = (last - first + 1) / width
  if n < 1 or n > CHUNK or n ~= math.floor(n) then
    refuse('expected ' .. (width == 2 and 'two' or 'five') .. ' arguments for each of 1 to ' .. CHUNK .. ' jobs')
  end
  local ids, replies = room_for(n >= MANY and n + 1 or n), room_for(n)
  for i = 1, n do
    ids[i] = argv[first + (i - 1) * width]
  end
  if n >= MANY then
    ids[n + 1] = LONG -- it may be somebody's
  end
  local active, scores = many('HMGET', q.active, ids), many('ZMSCORE', q.waiting, ids)
  local jobs, others, plain = {}, {}, none_plain(n) -- an id may come twice
  local values, times, created = plain.values, plain.times, 0
  for i = 1, n do
    local at, id = first + (i - 1) * width, ids[i]
    local job = jobs[id]
    if not job and not active[i] and not scores[i] and id ~= ''
      and (width == 2 or argv[at + 3] == '' and argv[at + 4] == '') then
      -- Most are like this one, and it is the same as `create` and `keep` without their tables.
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
        job = other_job(id, job, active[i], scores[i], plain)
        jobs[id], others[#others + 1] = job, job
      end
      replies[i] = dispatch_one(q, job, read_dispatch(q, argv, at, width))
    end
  end
  plain.n = created
  local batch = new_batch()
  if n >= MANY and not active[n + 1] and not scores[n + 1] and not jobs[LONG] then
    make_tables(q, batch, #argv[first + 1] <= 64, #others + plain.scheduled >= MANY)
  end
  create_plain(q, batch, plain)
  for _, job in ipairs(others) do
    keep(q, batch, job.id, job)
  end
  keep_call(q, batch, call, replies, created == n)
  batch:commit(q)
  return replies
end

-- Dispatches jobs of `width` arguments each, then calls `wake_up`. If this repeats the last call of a
-- caller, it replies as that call did and changes nothing. The queue has `n` keys.
local function dispatch_once(keys, argv, n, width, wake_up)
  local q = open(keys, 1, argv[1], n)
  local call, last = call_arg(q, keys, n, argv)
  local before = call and answered(q, call, (last - 1) / width)
  if before then
    return before
  end
  local replies = dispatch(q, argv, 2, last, width, call)
  wake_up(q)
  return replies
end

return {
  dispatch_once = dispatch_once,
}
