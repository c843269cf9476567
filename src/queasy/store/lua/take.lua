-- Dequeue: due jobs, oldest first, each under a lease of the client that asks.

local CHUNK, many, any_of, room_for = keys.CHUNK, keys.many, keys.any_of, keys.room_for
local count = stats.count
local new_batch = batch.new
local read_active = job.read_active
local id_of, range_of = client.id_of, client.range_of
local is_suspect = waking.is_suspect
local commit_runs = endings.commit_runs
local lease_each = lease.lease_each

-- Who holds more leases than this has the ids of its last batch kept with its request: a repeat
-- of that must not look through all its leases.
local FEW_LEASES = 100

-- How many suspects one who passes over them looks behind, a page at a time.
local SIGHT = 1000
local PAGE = 100

local function leased_to(q, client)
  local low, high = range_of(client)
  local ids = {}
  for i, lease in ipairs(redis.call('ZRANGE', q.leases, low, high, 'BYLEX', 'LIMIT', 0, CHUNK)) do
    ids[i] = id_of(lease, client)
  end
  return ids
end

-- The jobs of an earlier call with the same request id: the answer was lost, not the jobs.
local function same_again(q, client, ids, first_token, last_token)
  local active = many('HMGET', q.active, ids)
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

-- What is kept of a dequeue, to know it again.
local function request_of(q, asks, jobs)
  local kept = asks.request .. ' ' .. jobs[2] .. ' ' .. jobs[#jobs - 3] -- the first token, and the last
  local held = redis.call('ZLEXCOUNT', q.leases, range_of(asks.client)) + #jobs / 5
  if held <= FEW_LEASES then
    return kept
  end
  local ids = {}
  for i = 1, #jobs, 5 do
    ids[#ids + 1] = jobs[i]
  end
  return kept .. ' ' .. cmsgpack.pack(ids)
end

-- The first `limit` due jobs: ids, scores, infos. Who `passes` leaves suspects to others; but where
-- nothing else is in sight for so many of them, all have to help. And whether those are all there
-- are for one who passes: he looks through the suspects once in a call.
local function find_due(q, limit, passes)
  if passes and q.none_left then
    return {}, {}, {}, true
  end
  local ids, scores, infos, seen, size, all = nil, nil, nil, 0, limit, false
  repeat
    local page = redis.call('ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE', 'LIMIT', seen, size, 'WITHSCORES')
    local n = #page / 2
    local found, found_scores = room_for(n), room_for(n)
    for i = 1, n do
      found[i], found_scores[i] = page[2 * i - 1], page[2 * i]
    end
    local found_infos = any_of(q.info, found)
    if not passes then
      return found, found_scores, found_infos
    elseif seen == 0 and #found_infos == 0 then -- no job has a record: none is a suspect
      q.none_left = n == 0
      return found, found_scores, found_infos, n < size
    end
    ids, scores, infos = ids or {}, scores or {}, infos or {}
    for i = 1, n do
      if is_suspect(found_infos[i]) then
        q.passed = true
      elseif #ids < limit then
        local at = #ids + 1
        ids[at], scores[at], infos[at] = found[i], found_scores[i], found_infos[i]
      end
    end
    seen = seen + n
    all = n < size
    size = PAGE
  until #ids == limit or all or seen >= SIGHT
  if #ids == 0 and seen >= SIGHT then
    return find_due(q, limit)
  end
  all = all and #ids < limit
  q.none_left = all and #ids == 0
  return ids, scores, infos, all
end

-- Leases up to `limit` due jobs, until `expiry`, to the client that `asks`: with a request, and with
-- what the server has of it, old_expiry and old_request.
local function take(q, asks, expiry, limit, passes)
  local ids, scores, infos, all = find_due(q, limit, passes)
  if #ids == 0 then
    return {}
  end
  -- Tokens follow the clock: one that was given out is not given out again although the server
  -- forgot about it (a crash, a failover to a replica that lagged behind).
  q.token = math.max(math.ceil(q.token), math.floor(q.now * 1000))
  local batch, client = new_batch(), asks.client
  local jobs, done = lease_each(q, batch, client, ids, scores, infos)
  q.none_left = all and done == #ids
  batch:all('zrem', q.waiting, ids, done, scores) -- whatever became of them
  if #jobs > 0 then
    count(q, 'dequeued', #jobs / 5)
    batch:add(q.clients, client, expiry, asks.old_expiry)
    if asks.request ~= '' then
      batch:set(q.requests, client, request_of(q, asks, jobs), asks.old_request)
    end
  end
  commit_runs(q, batch)
  return jobs
end

return {
  leased_to = leased_to, same_again = same_again, find_due = find_due, take = take,
}
