-- The records of jobs that were given up ('failed') and of payloads that could not be decoded
-- ('broken'). Each kind is a hash and a sorted set by time. The failed record keeps the newest:
-- those jobs had their attempts. A broken job had none, so its record is never dropped to make
-- room: if there is no room, the job stays in the queue (`reserve_broken`).

local MAX_CALL_BYTES, in_chunks, settings_of = keys.MAX_CALL_BYTES, keys.in_chunks, keys.settings_of
local tick = keys.tick
local count = stats.count
local new_batch = batch.new
local is_time, are_options, write_info = job.is_time, job.are_options, job.write_info
local join_payload, split_payload = job.join_payload, job.split_payload
local load_waiting = job.load_waiting
local record_call = idempotency.record_call
local wake_after_call, count_due = waking.wake_after_call, waking.count_due

local TRIM_LIMIT = 1000

-- Collects a record; `write_records` writes all that a call collected.
local function add_record(q, kind, id, record)
  q.records = q.records or {}
  local noted = q.records[kind] or { ids = {}, records = {} }
  q.records[kind] = noted
  local n = #noted.ids + 1
  noted.ids[n], noted.records[n] = id, record
end

-- Collects a record of a broken job.
local function add_broken(q, id, problem, payload)
  add_record(q, 'broken', id, join_payload({ broken_at = q.now, error = problem }, payload or ''))
end

-- The error of a job that another program has damaged.
local function unreadable(message)
  return { kind = 'broken', type = 'Unreadable', message = message }
end

-- `meta` has a mark while there are failed records, so that a call that finishes jobs need not look
-- for them in a queue that has none. Every call reads the mark, with the clock.
local MARK = 8 -- its place in keys.CLOCK

local function mark_failed(q, batch)
  if not q.old_clock[MARK] then
    batch:set(q.meta, 'has_failed', '1')
    q.old_clock[MARK] = '1'
  end
end

-- Removes the mark if these were all failed records.
local function unmark_failed(q, batch, kind, removed)
  local mark = q.old_clock[MARK]
  if kind == 'failed' and mark and removed >= redis.call('ZCARD', q.failed_at) then
    batch:del(q.meta, 'has_failed', mark)
    q.old_clock[MARK] = false
  end
end

-- Notes that the first `n` of these ids finished: `write_records` removes their failed records.
local function note_finished(q, ids, n)
  if q.old_clock[MARK] then
    q.finished = q.finished or {}
    for i = 1, n do
      q.finished[#q.finished + 1] = ids[i]
    end
  end
end

-- Removes the failed records of jobs that finished: such a record would say that the job failed
-- last. Returns the set of their ids, and how many there are.
local function forget_failed(q, batch)
  local ids = q.finished or {}
  local times = in_chunks('ZMSCORE', q.failed_at, ids)
  local gone, scores, set, n = {}, {}, {}, 0
  for i, id in ipairs(ids) do
    if times[i] then
      n = n + 1
      gone[n], scores[n], set[id] = id, times[i], true
    end
  end
  if n > 0 then
    batch:bulk('zrem', q.failed_at, gone, n, scores)
    batch:bulk_del_unread(q.failed, gone, n)
  end
  q.finished = nil
  return set, n
end

-- Drops the oldest records, so that `most` remain together with `added` new ones; keeps those in
-- `but`.
local function trim(q, batch, kind, most, added, but)
  local order = q[kind .. '_at']
  local excess = redis.call('ZCARD', order) + added - most
  if excess <= 0 then
    return 0
  end
  local stay = 0
  for _ in pairs(but) do
    stay = stay + 1
  end
  local last = math.min(excess + stay, TRIM_LIMIT) - 1
  local oldest = redis.call('ZRANGE', order, 0, last, 'WITHSCORES')
  local ids, scores, n = {}, {}, 0
  for i = 1, #oldest, 2 do
    if n < excess and not but[oldest[i]] then
      n = n + 1
      ids[n], scores[n] = oldest[i], oldest[i + 1]
    end
  end
  if n > 0 then
    batch:bulk('zrem', order, ids, n, scores)
    batch:bulk_del_unread(q[kind], ids, n)
    if next(but) == nil then
      unmark_failed(q, batch, kind, n)
    end
  end
  return n
end

-- Adds the collected records of one kind to the batch; only the newest if there are too many. This
-- batch also removes the records of the ids in `gone`, of which there are `n_gone`.
local function write_records_of(q, batch, kind, noted, gone, n_gone)
  local order = q[kind .. '_at']
  local most = kind == 'failed' and settings_of(q).failed_limit or math.huge
  local fresh, ids, entries, times, n = {}, {}, {}, {}, 0
  for i = 1, #noted.ids do
    times[i] = tick(q) -- later than those of an earlier call at the same instant
  end
  local places = {}
  for i = #noted.ids, 1, -1 do -- of several records of one id, the last one stays
    local id = noted.ids[i]
    if n < most and not fresh[id] then
      n, fresh[id] = n + 1, true
      ids[n], entries[2 * n - 1], entries[2 * n] = id, id, noted.records[i]
      places[2 * n - 1], places[2 * n] = times[i], id
    end
  end
  local before, olds, added = in_chunks('ZMSCORE', order, ids), {}, n
  for i = 1, n do
    if before[i] then
      olds[i], added = redis.call('HGET', q[kind], ids[i]), added - 1
    end
  end
  if n > 0 then
    batch:bulk('hset', q[kind], entries, 2 * n, olds)
    batch:bulk('zadd', order, places, 2 * n, before)
  end
  if kind == 'failed' then
    if n > 0 then
      mark_failed(q, batch)
    end
    for id in pairs(gone) do
      fresh[id] = true
    end
    trim(q, batch, kind, most, added - n_gone, fresh)
  end
end

-- Reserves a place in the broken record; false if there is none.
local function reserve_broken(q, id)
  if redis.call('HEXISTS', q.broken, id) == 1 then
    return true -- it replaces its own record
  end
  local taken = q.broken_taken or 0
  if redis.call('ZCARD', q.broken_at) + taken >= settings_of(q).broken_limit then
    return false
  end
  q.broken_taken = taken + 1
  return true
end

local function write_records(q, batch)
  local gone, n_gone = {}, 0
  if q.finished then
    gone, n_gone = forget_failed(q, batch)
  end
  for kind, noted in pairs(q.records or {}) do
    write_records_of(q, batch, kind, noted, gone, n_gone)
  end
  if n_gone > 0 and not (q.records and q.records.failed) then
    unmark_failed(q, batch, 'failed', n_gone)
  end
  q.records, q.broken_taken = nil, nil
end

-- The record and the payload in `raw`; nil if the job cannot be dispatched from them.
local function read_record(raw)
  local record, payload = split_payload(raw or '')
  local fine = record and (record.origin == nil or type(record.origin) == 'table')
    and (record.options == nil or are_options(record.options))
    and (record.dispatched_at == nil or is_time(record.dispatched_at))
  if fine then
    return record, payload
  end
  return nil
end

-- Makes recorded jobs wait again, with their counts at zero. An id that waits or is active keeps
-- its record. Bounded in bytes: the reply for the rest is 'later', and the client calls again for
-- those.
local function requeue(q, kind, ids, call)
  local jobs = load_waiting(q, ids)
  local times = in_chunks('ZMSCORE', q[kind .. '_at'], ids)
  local batch, replies, bytes, removed = new_batch(), {}, 0, 0
  for i, id in ipairs(ids) do
    local later = bytes >= MAX_CALL_BYTES
    local raw = not later and redis.call('HGET', q[kind], id)
    local record, payload = read_record(raw)
    bytes = bytes + #(payload or raw or '')
    replies[i] = later and 'later' or 'absent'
    if raw and (jobs[id].active or jobs[id].score) then
      replies[i] = 'exists'
    elseif record then
      local score = tick(q)
      jobs[id].score = score
      batch:set(q.data, id, payload)
      batch:add(q.waiting, id, score)
      local info = { options = record.options, origin = record.origin }
      info.dispatched_at = record.dispatched_at
      write_info(q, batch, id, info, score)
      batch:del(q[kind], id, raw)
      batch:rem(q[kind .. '_at'], id, times[i])
      removed = removed + 1
      count(q, 'requeued')
      count_due(q, score)
      replies[i] = 'requeued'
    end
  end
  unmark_failed(q, batch, kind, removed)
  record_call(q, batch, call, replies)
  batch:commit(q)
  wake_after_call(q)
  return replies
end

-- Removes records; returns how many there were.
local function drop(q, kind, ids)
  local batch, dropped, seen = new_batch(), 0, {}
  local times = in_chunks('ZMSCORE', q[kind .. '_at'], ids)
  for i, id in ipairs(ids) do
    if not seen[id] and (times[i] or redis.call('HEXISTS', q[kind], id) == 1) then
      seen[id] = true
      if times[i] then
        batch:rem(q[kind .. '_at'], id, times[i])
      end
      batch:del_unread(q[kind], id)
      dropped = dropped + 1
    end
  end
  unmark_failed(q, batch, kind, dropped)
  batch:commit(q)
  return dropped
end

return {
  add_record = add_record, add_broken = add_broken, unreadable = unreadable, trim = trim,
  note_finished = note_finished,
  reserve_broken = reserve_broken, write_records = write_records, requeue = requeue, drop = drop,
}
