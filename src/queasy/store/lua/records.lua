-- The records of jobs given up ('failed') and of payloads nobody could decode ('broken').
-- Each is a hash and an order in time. Of the failed the newest are kept: they had their
-- chance. A broken job had none, so its record is never dropped to make room: when there is
-- no room, such a job stays in the queue (`room_for_broken`).

local BYTES, many, settings_of, tick = keys.BYTES, keys.many, keys.settings_of, keys.tick
local count = stats.count
local new_batch = batch.new
local read_info, keep_info, split = job.read_info, job.keep_info, job.split
local load_waiting = job.load_waiting
local keep_call = idempotency.keep_call
local wake_for, made_due = waking.wake_for, waking.made_due

local TRIM_LIMIT = 1000

-- Notes a record to be kept; `keep_records` writes it, with all others of the call.
local function keep_failed(q, kind, id, record)
  q.records = q.records or {}
  local noted = q.records[kind] or { ids = {}, records = {} }
  q.records[kind] = noted
  local n = #noted.ids + 1
  noted.ids[n], noted.records[n] = id, record
end

-- Drops the oldest records so that `most` remain with `added` new ones; those in `but` stay.
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
  local oldest = redis.call('ZRANGE', order, 0, math.min(excess + stay, TRIM_LIMIT) - 1, 'WITHSCORES')
  local ids, scores, n = {}, {}, 0
  for i = 1, #oldest, 2 do
    if n < excess and not but[oldest[i]] then
      n = n + 1
      ids[n], scores[n] = oldest[i], oldest[i + 1]
    end
  end
  if n > 0 then
    batch:all('zrem', order, ids, n, scores)
    batch:all_last(q[kind], ids, n)
  end
  return n
end

-- Puts the noted records of one kind into the batch, the newest of them if they are too many.
local function keep_records_of(q, batch, kind, noted)
  local order, most = q[kind .. '_at'], kind == 'failed' and settings_of(q).failed_limit or math.huge
  local fresh, ids, entries, times, n = {}, {}, {}, {}, 0
  for i = 1, #noted.ids do
    times[i] = tick(q) -- also newer than those of an earlier call in the same instant
  end
  local places = {}
  for i = #noted.ids, 1, -1 do -- the last one of an id is the one to keep
    local id = noted.ids[i]
    if n < most and not fresh[id] then
      n, fresh[id] = n + 1, true
      ids[n], entries[2 * n - 1], entries[2 * n] = id, id, noted.records[i]
      places[2 * n - 1], places[2 * n] = times[i], id
    end
  end
  local before, olds, added = many('ZMSCORE', order, ids), {}, n
  for i = 1, n do
    if before[i] then
      olds[i], added = redis.call('HGET', q[kind], ids[i]), added - 1
    end
  end
  if n > 0 then
    batch:all('hset', q[kind], entries, 2 * n, olds)
    batch:all('zadd', order, places, 2 * n, before)
  end
  if kind == 'failed' then
    trim(q, batch, kind, most, added, fresh)
  end
end

-- Takes a place in the record of broken jobs; false when there is none left.
local function room_for_broken(q, id)
  if redis.call('HEXISTS', q.broken, id) == 1 then
    return true -- its own
  end
  local taken = q.broken_taken or 0
  if redis.call('ZCARD', q.broken_at) + taken >= settings_of(q).broken_limit then
    return false
  end
  q.broken_taken = taken + 1
  return true
end

local function keep_records(q, batch)
  for kind, noted in pairs(q.records or {}) do
    keep_records_of(q, batch, kind, noted)
  end
  q.records, q.broken_taken = nil, nil
end

-- The record and the payload of `raw`; nil when there is none that could wait again.
local function readable(raw)
  local record, payload = split(raw or '')
  if record and (record.origin == nil or type(record.origin) == 'table')
    and read_info(cmsgpack.pack({ options = record.options, dispatched_at = record.dispatched_at })) then
    return record, payload
  end
  return nil
end

-- Brings records back to life as waiting jobs, with their counts at zero. An id that is
-- waiting or running already keeps its record. Bounded: what is beyond it is to be asked for again.
local function requeue(q, kind, ids, call)
  local jobs = load_waiting(q, ids)
  local times = many('ZMSCORE', q[kind .. '_at'], ids)
  local batch, replies, bytes = new_batch(), {}, 0
  for i, id in ipairs(ids) do
    local later = bytes >= BYTES
    local raw = not later and redis.call('HGET', q[kind], id)
    local record, payload = readable(raw)
    bytes = bytes + #(payload or raw or '')
    replies[i] = later and 'later' or 'absent'
    if raw and (jobs[id].active or jobs[id].score) then
      replies[i] = 'exists'
    elseif record then
      local score = tick(q)
      jobs[id].score = score
      batch:set(q.data, id, payload)
      batch:add(q.waiting, id, score)
      local info = { options = record.options, origin = record.origin, dispatched_at = record.dispatched_at }
      keep_info(q, batch, id, info, score)
      batch:del(q[kind], id, raw)
      batch:rem(q[kind .. '_at'], id, times[i])
      count(q, 'requeued')
      made_due(q, score)
      replies[i] = 'requeued'
    end
  end
  keep_call(q, batch, call, replies)
  batch:commit(q)
  wake_for(q)
  return replies
end

-- Forgets records; how many there were.
local function drop(q, kind, ids)
  local batch, dropped, seen = new_batch(), 0, {}
  local times = many('ZMSCORE', q[kind .. '_at'], ids)
  for i, id in ipairs(ids) do
    if not seen[id] and (times[i] or redis.call('HEXISTS', q[kind], id) == 1) then
      seen[id] = true
      if times[i] then
        batch:rem(q[kind .. '_at'], id, times[i])
      end
      batch:del_last(q[kind], id)
      dropped = dropped + 1
    end
  end
  batch:commit(q)
  return dropped
end

return {
  keep_failed = keep_failed, trim = trim, room_for_broken = room_for_broken,
  keep_records = keep_records, requeue = requeue, drop = drop,
}
