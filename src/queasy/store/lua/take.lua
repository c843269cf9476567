-- Taking due jobs, oldest first, each under a lease of one client.

local CHUNK, in_chunks, hmget_sparse = keys.CHUNK, keys.in_chunks, keys.hmget_sparse
local presized = keys.presized
local count = stats.count
local new_batch = batch.new
local read_active = job.read_active
local id_of, lease_range = client.id_of, client.lease_range
local DEQUEUED, note_dequeue = idempotency.DEQUEUED, idempotency.note_dequeue
local record_call = idempotency.record_call
local is_suspect = waking.is_suspect
local commit_runs = endings.commit_runs
local lease_jobs = lease.lease_jobs

-- If a client holds more leases than this, its request is stored with the ids of its last batch, so
-- that a repeat of the request need not read all its leases.
local FEW_LEASES = 100

-- How many due jobs a client that skips suspects looks at, a page at a time.
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

-- The first `limit` due jobs: ids, scores, infos.
--
-- With `skips_suspects` it leaves suspects to other clients. But if the first SUSPECT_SCAN jobs are
-- all suspects, it returns suspects: then every client has to help. The fourth result says whether
-- these are all due jobs apart from suspects. `q.none_due_left` remembers that there is none apart
-- from suspects, so that a call scans the suspects only once.
local function find_due(q, limit, skips_suspects)
  if skips_suspects and q.none_due_left then
    return {}, {}, {}, true
  end
  local ids, scores, infos, seen, size, none_left = nil, nil, nil, 0, limit, false
  repeat
    local page = redis.call('ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE',
      'LIMIT', seen, size, 'WITHSCORES')
    local n = #page / 2
    local found, found_scores = presized(n), presized(n)
    for i = 1, n do
      found[i], found_scores[i] = page[2 * i - 1], page[2 * i]
    end
    local found_infos = hmget_sparse(q.info, found)
    if not skips_suspects then
      return found, found_scores, found_infos
    elseif seen == 0 and #found_infos == 0 then -- no job has an info, so none is a suspect
      q.none_due_left = n == 0
      return found, found_scores, found_infos, n < size
    end
    ids, scores, infos = ids or {}, scores or {}, infos or {}
    for i = 1, n do
      if is_suspect(found_infos[i]) then
        q.skipped_suspects = true
      elseif #ids < limit then
        local at = #ids + 1
        ids[at], scores[at], infos[at] = found[i], found_scores[i], found_infos[i]
      end
    end
    seen = seen + n
    none_left = n < size
    size = PAGE
  until #ids == limit or none_left or seen >= SUSPECT_SCAN
  if #ids == 0 and seen >= SUSPECT_SCAN then
    return find_due(q, limit)
  end
  none_left = none_left and #ids < limit
  q.none_due_left = none_left and #ids == 0
  return ids, scores, infos, none_left
end

-- Leases up to `limit` due jobs to a client, until `expiry`. `taker` has the client, its request,
-- and what the server stores about it: old_expiry and old_request.
local function take(q, taker, expiry, limit, skips_suspects)
  local ids, scores, infos, none_left = find_due(q, limit, skips_suspects)
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
