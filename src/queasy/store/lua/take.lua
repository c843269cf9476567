-- Taking due jobs, oldest first, each under a lease of one client.

local CHUNK, in_chunks, hmget_sparse = keys.CHUNK, keys.in_chunks, keys.hmget_sparse
local presized = keys.presized
local count = stats.count
local new_batch = batch.new
local read_active, companions_of = job.read_active, job.companions_of
local id_of, lease_range = client.id_of, client.lease_range
local DEQUEUED, note_dequeue = idempotency.DEQUEUED, idempotency.note_dequeue
local record_call = idempotency.record_call
local commit_runs = endings.commit_runs
local lease_jobs = lease.lease_jobs

-- If a client holds more leases than this, its request is stored with the ids of its last batch, so
-- that a repeat of the request need not read all its leases.
local FEW_LEASES = 100

-- How many due jobs a dequeue looks at, a page at a time, if some of them are suspects.
local SUSPECT_SCAN = 1000
local PAGE = 100

local function leased_to(q, client)
  local low, high = lease_range(client)
  local ids = {}
  for i, lease in ipairs(redis.call('ZRANGE', q.leases, low, high, 'BYLEX', 'LIMIT', 0, CHUNK)) do
    ids[i] = id_of(lease, client)
  end
  return ids
end

-- The jobs that an earlier call with the same request id leased. Its reply was lost, so they are
-- sent again.
local function leased_batch(q, client, ids, first_token, last_token)
  local active = in_chunks('HMGET', q.active, ids)
  local runs = {}
  for i, id in ipairs(ids) do
    local token, score, holder = read_active(active[i] or '')
    local n = tonumber(token)
    if n and holder == client and n >= first_token and n <= last_token then
      runs[#runs + 1] = { id = id, token = token, score = score, n = n }
    end
  end
  table.sort(runs, function(a, b) return a.n < b.n end)
  local jobs = {}
  for _, run in ipairs(runs) do
    local at = #jobs
    jobs[at + 1], jobs[at + 2] = run.id, run.token
    jobs[at + 3] = string.format('%.17g', run.score)
    jobs[at + 4] = redis.call('HGET', q.data, run.id)
    jobs[at + 5] = redis.call('HGET', q.info, run.id) or ''
  end
  return jobs
end

-- The record of a dequeue, by which a repeat is recognised.
local function request_record(q, taker, jobs)
  -- the first and the last token
  local record = taker.request .. ' ' .. jobs[2] .. ' ' .. jobs[#jobs - 3]
  local lease_count = redis.call('ZLEXCOUNT', q.leases, lease_range(taker.client)) + #jobs / 5
  if lease_count <= FEW_LEASES then
    return record
  end
  local ids = {}
  for i = 1, #jobs, 5 do
    ids[#ids + 1] = jobs[i]
  end
  return record .. ' ' .. cmsgpack.pack(ids)
end

-- Sorts the suspects of a page in place: those that may have more companions come first; other jobs
-- keep their places. So larger groups run first: they clear more jobs at once, and most of their
-- jobs are innocent. Returns by place how many companions each suspect may have.
local function larger_groups_first(page, infos)
  local limits, places, suspects = {}, {}, {}
  for i = 1, #infos do
    local companions = infos[i] and companions_of(infos[i])
    if companions then
      places[#places + 1] = i
      suspects[#suspects + 1] = { companions, i, page[2 * i - 1], page[2 * i], infos[i] }
    end
  end
  if #suspects == 0 then
    return limits
  end
  table.sort(suspects, function(a, b)
    return a[1] > b[1] or a[1] == b[1] and a[2] < b[2]
  end)
  for n, i in ipairs(places) do
    local suspect = suspects[n]
    limits[i], page[2 * i - 1], page[2 * i], infos[i] = suspect[1], unpack(suspect, 3)
  end
  return limits
end

-- Adds the jobs of a page that may run together, beside `beside` others, to `found`. A suspect is
-- skipped if it would have more companions than it may have. Returns whether `found` is full: it
-- has `limit` jobs, or one of them may have no further companion.
local function add_fitting(q, found, page, infos, limits, limit, beside)
  for i = 1, #page / 2 do
    local n = #found.ids
    if n == limit or beside + n > found.most then
      return true
    end
    local companions = limits[i]
    if companions and companions < beside + n then
      q.skipped = math.max(q.skipped or 0, companions)
    else
      found.ids[n + 1], found.scores[n + 1] = page[2 * i - 1], page[2 * i]
      found.infos[n + 1] = infos[i]
      found.most = math.min(found.most, companions or math.huge)
    end
  end
  return #found.ids == limit
end

-- The first `limit` due jobs that may run together, beside `beside` others in the same process:
-- ids, scores, infos. The fourth result says whether these are all such jobs. If there are none,
-- sets `q.none_due_left`, so that a call scans the suspects only once. If suspects were skipped,
-- `q.skipped` is the most companions that any of them may have.
local function find_due(q, limit, beside)
  if q.none_due_left then
    return {}, {}, {}, true
  end
  local found, seen, size, full, none_left = nil, 0, limit, false, false
  repeat
    local page = redis.call('ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE',
      'LIMIT', seen, size, 'WITHSCORES')
    local n = #page / 2
    local ids, scores = presized(n), presized(n)
    for i = 1, n do
      ids[i], scores[i] = page[2 * i - 1], page[2 * i]
    end
    local infos = hmget_sparse(q.info, ids)
    local limits = larger_groups_first(page, infos)
    if seen == 0 and not next(limits) then -- no job is a suspect
      q.none_due_left = n == 0
      return ids, scores, infos, n < size
    end
    if seen == 0 and size < PAGE then
      size = PAGE -- read again, with more jobs: a larger group may follow
    else
      found = found or { ids = {}, scores = {}, infos = {}, most = math.huge }
      full = add_fitting(q, found, page, infos, limits, limit, beside)
      seen = seen + n
      none_left = n < size and not full
      size = PAGE
    end
  until full or none_left or seen >= SUSPECT_SCAN
  q.none_due_left = none_left and #found.ids == 0
  return found.ids, found.scores, found.infos, none_left
end

-- Leases up to `limit` due jobs to a client, until `expiry`. They run beside `beside` others.
-- `taker` has the client, its request, and what the server stores about it: old_expiry and
-- old_request.
local function take(q, taker, expiry, limit, beside)
  local ids, scores, infos, none_left = find_due(q, limit, beside)
  if #ids == 0 then
    if taker.call then
      note_dequeue(q, taker.call)
    end
    return {}
  end
  -- Tokens follow the clock: a token that was issued is not issued again, even if the server lost
  -- its state (a crash, a failover to a replica that lagged).
  q.token = math.max(math.ceil(q.token), math.floor(q.now * 1000))
  local batch, client = new_batch(), taker.client
  local jobs, done = lease_jobs(q, batch, client, ids, scores, infos)
  q.none_due_left = none_left and done == #ids
  batch:bulk('zrem', q.waiting, ids, done, scores) -- the leased and the quarantined
  if #jobs > 0 then
    count(q, 'dequeued', #jobs / 5)
    batch:add(q.clients, client, expiry, taker.old_expiry)
    if taker.request ~= '' then
      batch:set(q.requests, client, request_record(q, taker, jobs), taker.old_request)
    end
  end
  if taker.call then
    record_call(q, batch, taker.call, DEQUEUED)
  end
  commit_runs(q, batch)
  return jobs
end

return {
  leased_to = leased_to, leased_batch = leased_batch, find_due = find_due, take = take,
}
