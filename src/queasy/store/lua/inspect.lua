-- Reading: nothing here writes.

local function pick(record, names)
  local out = {}
  for _, name in ipairs(names) do
    out[name] = record[name]
  end
  return next(out) and cmsgpack.pack(out) or ''
end

-- A row of a list: id, state, run_at, token, client, info, data, note. `note` is the held
-- dispatch's run_at and whether a cancel was asked for, or the record of a failure.
local function row(id, state, run_at, token, client, info, data, note)
  return { id, state, run_at or '', token or '', client or '', info or '', data or '', note or '' }
end

local function waiting_row(q, id, score)
  local state = tonumber(score) <= q.time and 'due' or 'scheduled'
  return row(id, state, score, '', '', redis.call('HGET', q.info, id), redis.call('HGET', q.data, id))
end

local function active_row(q, id, active)
  local token, score, client, cancelled = read_active(active)
  local held = redis.call('HGET', q.blocked, id)
  local note = {}
  if cancelled then
    note.cancelled = true
  end
  if held then
    note.blocked = (split(held) or {}).run_at or 0
  end
  return row(id, 'active', score and string.format('%.17g', score), token, client,
    redis.call('HGET', q.info, id), redis.call('HGET', q.data, id), next(note) and cmsgpack.pack(note))
end

local function blocked_row(id, raw)
  local held, payload = split(raw)
  if not held then
    return row(id, 'blocked', '', '', '', '', raw, '')
  end
  local info = pick({ dispatched_at = held.accepted, options = held.options }, { 'dispatched_at', 'options' })
  return row(id, 'blocked', string.format('%.17g', held.run_at), '', '', info, payload)
end

local FAILED_INFO = {
  'dispatched_at', 'retry_count', 'stall_count', 'timeout_count', 'options', 'error', 'origin',
}

local function record_row(q, kind, id)
  local raw = redis.call('HGET', q[kind], id)
  local record, payload = split(raw or '')
  if not record then
    return row(id, kind, '', '', '', '', raw, '')
  end
  return row(id, kind, '', record.token, '', pick(record, FAILED_INFO), payload,
    cmsgpack.pack({ at = record.failed_at or record.broken_at }))
end

-- One job in whatever states it has: waiting or active, blocked, failed, broken.
local function get(q, id)
  local rows = {}
  local score = redis.call('ZSCORE', q.waiting, id)
  if score then
    rows[#rows + 1] = waiting_row(q, id, score)
  end
  local active = redis.call('HGET', q.active, id)
  if active then
    rows[#rows + 1] = active_row(q, id, active)
  end
  local held = redis.call('HGET', q.blocked, id)
  if held then
    rows[#rows + 1] = blocked_row(id, held)
  end
  for _, kind in ipairs({ 'failed', 'broken' }) do
    if redis.call('HEXISTS', q[kind], id) == 1 then
      rows[#rows + 1] = record_row(q, kind, id)
    end
  end
  return rows
end

local LISTS = {}

local function waiting_list(q, low, high, offset, limit)
  local rows = {}
  local found = redis.call('ZRANGE', q.waiting, low, high, 'BYSCORE', 'LIMIT', offset, limit, 'WITHSCORES')
  for i = 1, #found, 2 do
    rows[#rows + 1] = waiting_row(q, found[i], found[i + 1])
  end
  return rows, #found / 2
end

function LISTS.waiting(q, offset, limit)
  return waiting_list(q, '-inf', '+inf', offset, limit)
end

function LISTS.due(q, offset, limit)
  return waiting_list(q, '-inf', q.time, offset, limit)
end

function LISTS.scheduled(q, offset, limit)
  return waiting_list(q, string.format('(%.17g', q.time), '+inf', offset, limit)
end

local function each_active(q, offset, limit, add)
  local rows = {}
  local leases = redis.call('ZRANGE', q.leases, offset, offset + limit - 1)
  for _, lease in ipairs(leases) do
    local row_of = add(lease:match('^[^:]*:(.*)$'))
    if row_of then
      rows[#rows + 1] = row_of
    end
  end
  return rows, #leases
end

function LISTS.active(q, offset, limit)
  return each_active(q, offset, limit, function(id)
    local active = redis.call('HGET', q.active, id)
    return active and active_row(q, id, active)
  end)
end

-- Held dispatches stand behind active jobs, so a page of those is a bounded look at these.
function LISTS.blocked(q, offset, limit)
  return each_active(q, offset, limit, function(id)
    local held = redis.call('HGET', q.blocked, id)
    return held and blocked_row(id, held)
  end)
end

local function record_list(kind)
  return function(q, offset, limit)
    local rows = {}
    local ids = redis.call('ZRANGE', q[kind .. '_at'], offset, offset + limit - 1, 'REV')
    for i, id in ipairs(ids) do
      rows[i] = record_row(q, kind, id)
    end
    return rows, #ids
  end
end

LISTS.failed = record_list('failed')
LISTS.broken = record_list('broken')

local function counts(q)
  local head = redis.call('ZRANGE', q.waiting, 0, 0, 'WITHSCORES')
  return {
    redis.call('ZCARD', q.waiting), redis.call('ZCOUNT', q.waiting, '-inf', q.time),
    redis.call('HLEN', q.active), redis.call('HLEN', q.blocked),
    redis.call('HLEN', q.failed), redis.call('HLEN', q.broken),
    redis.call('ZCARD', q.clients), redis.call('ZCARD', q.waiters),
    q.paused and 1 or 0, head[2] or '', string.format('%.17g', q.now),
  }
end

-- Clients, the one to expire first in front: client, expires in ms, leases, worker.
local function clients(q, offset, limit)
  local out = {}
  local found = redis.call('ZRANGE', q.clients, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local client = found[i]
    out[#out + 1] = {
      client, string.format('%.0f', tonumber(found[i + 1]) - q.now),
      redis.call('ZLEXCOUNT', q.leases, range_of(client)),
      redis.call('HGET', q.workers, client) or '',
    }
  end
  return out
end
