-- Reading: nothing here writes.

local MAX_INTEGER, refuse, stored_number = keys.MAX_INTEGER, keys.refuse, keys.stored_number
local MAX_CALL_BYTES = keys.MAX_CALL_BYTES
local in_chunks = keys.in_chunks
local split_payload, read_held, read_active = job.split_payload, job.read_held, job.read_active
local is_time = job.is_time
local lease_name, lease_range, id_of = client.lease_name, client.lease_range, client.id_of

local function pick(record, names)
  local out = {}
  for _, name in ipairs(names) do
    out[name] = record[name]
  end
  return next(out) and cmsgpack.pack(out) or ''
end

-- A row of a list: id, state, run_at, token, client, info, data, note. `note` has the run_at of the
-- held dispatch and whether a cancel was requested, or the time of a failure.
local function row(id, state, run_at, token, client, info, data, note)
  return { id, state, run_at or '', token or '', client or '', info or '', data or '', note or '' }
end

local ROW = {} -- one constructor for each state

function ROW.waiting(q, id, score)
  local state = tonumber(score) <= q.time and 'due' or 'scheduled'
  local info, data = redis.call('HGET', q.info, id), redis.call('HGET', q.data, id)
  return row(id, state, score, '', '', info, data)
end

function ROW.active(q, id, active)
  local token, score, client, cancelled = read_active(active)
  local held = redis.call('HGET', q.blocked, id)
  local note = {}
  if cancelled then
    note.cancelled = true
  end
  if held then
    note.blocked = (read_held(held) or {}).run_at or 0
  end
  local info, data = redis.call('HGET', q.info, id), redis.call('HGET', q.data, id)
  local run_at, packed = score and string.format('%.17g', score), next(note) and cmsgpack.pack(note)
  return row(id, 'active', run_at, token, client, info, data, packed)
end

function ROW.blocked(id, raw)
  local held, payload = read_held(raw)
  if not held then
    return row(id, 'blocked', '', '', '', '', raw, '')
  end
  local info = cmsgpack.pack({ dispatched_at = held.accepted, options = held.options })
  return row(id, 'blocked', string.format('%.17g', held.run_at), '', '', info, payload)
end

local FAILED_INFO = {
  'dispatched_at', 'retry_count', 'stall_count', 'timeout_count', 'expiry_count', 'options',
  'limits', 'error', 'origin',
}

function ROW.record(q, kind, id)
  local raw = redis.call('HGET', q[kind], id)
  local record, payload = split_payload(raw or '')
  if not record then
    return row(id, kind, '', '', '', '', raw, '')
  end
  local token = stored_number(record.token, MAX_INTEGER) and record.token
  local note = cmsgpack.pack({ at = record.failed_at or record.broken_at })
  local run_at = record.limits and (record.run_at or record.dispatched_at) -- nil: of revision 10
  run_at = is_time(run_at) and string.format('%.17g', run_at)
  return row(id, kind, run_at, token, '', pick(record, FAILED_INFO), payload, note)
end

-- One job in all its states: waiting or active, blocked, failed, broken.
local function get(q, id)
  local rows = {}
  local score = redis.call('ZSCORE', q.waiting, id)
  if score then
    rows[#rows + 1] = ROW.waiting(q, id, score)
  end
  local active = redis.call('HGET', q.active, id)
  if active then
    rows[#rows + 1] = ROW.active(q, id, active)
  end
  local held = redis.call('HGET', q.blocked, id)
  if held then
    rows[#rows + 1] = ROW.blocked(id, held)
  end
  for _, kind in ipairs({ 'failed', 'broken' }) do
    if redis.call('HEXISTS', q[kind], id) == 1 then
      rows[#rows + 1] = ROW.record(q, kind, id)
    end
  end
  return rows
end

-- Lists are read in pages. A cursor says where the last page ended, not how many jobs came before
-- it, so that a page misses no job because others have left. A page ends after MAX_CALL_BYTES, with
-- at least one job.
local LISTS = {}

local function new_page()
  return { rows = {}, bytes = 0 }
end

-- Adds a row to a page; returns whether the page is full.
local function add_row(page, added)
  page.rows[#page.rows + 1] = added
  page.bytes = page.bytes + #added[6] + #added[7]
  return page.bytes >= MAX_CALL_BYTES
end

-- How many members of a sorted set come before (score, id), and 1 if that member is still there. If
-- it has left, a binary search finds its place among the members with the same score.
local function place_of(key, score, id)
  local now_at = redis.call('ZSCORE', key, id)
  if now_at and tonumber(now_at) == tonumber(score) then
    return redis.call('ZRANK', key, id), 1
  end
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', key, middle, middle)[1] < id then
      low = middle + 1
    else
      high = middle
    end
  end
  return low, 0
end

-- A cursor is the score and the id of the last job of a page.
local function read_cursor(cursor)
  local score, id = cursor:match('^(%S+) (.*)$')
  if not tonumber(score) then
    refuse('expected a cursor that an earlier page returned')
  end
  return score, id
end

-- Waiting jobs, from rank `first` (without a cursor) up to the score `last`.
local function waiting_list(q, first, last, cursor, limit)
  if cursor ~= '' then
    local before, there = place_of(q.waiting, read_cursor(cursor))
    first = before + there
  end
  local found = redis.call('ZRANGE', q.waiting, first, first + limit - 1, 'WITHSCORES')
  local page = new_page()
  for i = 1, #found, 2 do
    if last and tonumber(found[i + 1]) > last then
      return page.rows, ''
    end
    local full = add_row(page, ROW.waiting(q, found[i], found[i + 1]))
    if full or #page.rows == limit then
      return page.rows, found[i + 1] .. ' ' .. found[i]
    end
  end
  return page.rows, ''
end

function LISTS.waiting(q, cursor, limit)
  return waiting_list(q, 0, nil, cursor, limit)
end

function LISTS.due(q, cursor, limit)
  return waiting_list(q, 0, q.time, cursor, limit)
end

function LISTS.scheduled(q, cursor, limit)
  return waiting_list(q, redis.call('ZCOUNT', q.waiting, '-inf', q.time), nil, cursor, limit)
end

-- All leases have the same score, so their cursor is the last lease.
local function each_active(q, cursor, limit, row_of)
  local page = new_page()
  local from = cursor == '' and '-' or '(' .. cursor
  local leases = redis.call('ZRANGE', q.leases, from, '+', 'BYLEX', 'LIMIT', 0, limit)
  for _, lease in ipairs(leases) do
    local id = lease:match('^[^:]*:(.*)$')
    local found = id and row_of(id)
    if found and add_row(page, found) then
      return page.rows, lease
    end
  end
  return page.rows, #leases == limit and leases[#leases] or ''
end

function LISTS.active(q, cursor, limit)
  return each_active(q, cursor, limit, function(id)
    local active = redis.call('HGET', q.active, id)
    return active and ROW.active(q, id, active)
  end)
end

-- Only active jobs have a held dispatch, so a page of active jobs bounds the search.
function LISTS.blocked(q, cursor, limit)
  return each_active(q, cursor, limit, function(id)
    local held = redis.call('HGET', q.blocked, id)
    return held and ROW.blocked(id, held)
  end)
end

-- The newest first.
local function record_list(kind)
  return function(q, cursor, limit)
    local order = q[kind .. '_at']
    local before
    if cursor == '' then
      before = redis.call('ZCARD', order)
    else
      before = place_of(order, read_cursor(cursor))
    end
    if before == 0 then
      return {}, ''
    end
    local found = redis.call('ZRANGE', order, math.max(0, before - limit), before - 1, 'WITHSCORES')
    local page = new_page()
    for i = #found - 1, 1, -2 do
      if add_row(page, ROW.record(q, kind, found[i])) then
        return page.rows, found[i + 1] .. ' ' .. found[i]
      end
    end
    return page.rows, before > limit and found[2] .. ' ' .. found[1] or ''
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

-- A page of the leases of one client: id and token of each, and the cursor of the next page. A
-- cursor is the last id of a page. Reads no payloads.
local function leases_of(q, client, cursor, limit)
  local low, high = lease_range(client)
  if cursor ~= '' then
    low = '(' .. lease_name(client, cursor)
  end
  local ids = redis.call('ZRANGE', q.leases, low, high, 'BYLEX', 'LIMIT', 0, limit)
  for i, lease in ipairs(ids) do
    ids[i] = id_of(lease, client)
  end
  local active, out = in_chunks('HMGET', q.active, ids), {}
  for i, id in ipairs(ids) do
    local token, _, holder = read_active(active[i] or '')
    if token and holder == client then
      out[#out + 1], out[#out + 2] = id, token
    end
  end
  return { out, #ids == limit and ids[#ids] or '' }
end

-- Clients in order of expiry: client, expires in ms, leases, worker.
local function clients(q, offset, limit)
  local out = {}
  local found = redis.call('ZRANGE', q.clients, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local client = found[i]
    out[#out + 1] = {
      client, string.format('%.0f', tonumber(found[i + 1]) - q.now),
      redis.call('ZLEXCOUNT', q.leases, lease_range(client)),
      redis.call('HGET', q.workers, client) or '',
    }
  end
  return out
end

return {
  get = get, LISTS = LISTS, counts = counts, leases_of = leases_of, clients = clients,
}
