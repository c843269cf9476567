-- Dequeue: due jobs, oldest first, each under a lease of the client that asks.

local MOST, CHUNK, many, any_of = keys.MOST, keys.CHUNK, keys.many, keys.any_of
local room_for = keys.room_for
local count = stats.count
local new_batch = batch.new
local read_active = job.read_active
local id_of, range_of = client.id_of, client.range_of
local WAITER_GONE_MS, wake, next_job = waking.WAITER_GONE_MS, waking.wake, waking.next_job
local next_to_come, is_suspect = waking.next_to_come, waking.is_suspect
local next_event = waking.next_event
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

-- When there is a job for one who passes over suspects; nil for never.
local function next_job_for(q, passes)
  local at = next_job(q)
  if not passes or not at or at > q.now or #find_due(q, 1, passes) > 0 then
    return at
  end
  return next_to_come(q)
end

-- Milliseconds until there is a reason to look again; -1 when there is none.
local function next_in(q, passes)
  local at = next_event(q, next_job_for(q, passes))
  return at and math.max(0, math.min(math.ceil(at - q.now), MOST)) or -1
end

local function is_due(q, passes)
  local at = next_job_for(q, passes)
  return at and at <= q.now
end

-- Somebody is woken for what is due and was left: by one who has no use for it, or for a suspect.
local function pass_on(q)
  if is_due(q) then
    wake(q, 1)
  end
end

-- A client that holds nothing and sleeps has said when it looks again, at the latest, and need not
-- say meanwhile that it lives. Its lease lasts until well after that: or another that sleeps would
-- look because this one might be dead, when it is merely the next to look. Returns how many leases it
-- holds.
local function sleep_on(q, client, expiry)
  if client:byte(1) == 126 then -- '~'
    return 0
  end
  local held = redis.call('ZLEXCOUNT', q.leases, range_of(client))
  if held > 0 then
    return held
  end
  local batch = new_batch()
  batch:add(q.clients, client, expiry, redis.call('ZSCORE', q.clients, client))
  batch:commit(q)
  return 0
end

-- Takes a client out of those to be woken, or (with the time at which it looks by itself)
-- puts it there, in place of some who are gone.
local function stand_by(q, waiter, look_at, passes, by_hand)
  if not look_at and #redis.call('ZRANGE', q.waiters, 0, 0) == 0 then
    q.nobody_waits = true -- `watch` need not look again
    return
  end
  local before = redis.call('ZSCORE', q.waiters, waiter)
  local batch, any = new_batch(), false
  if look_at then
    local gone = redis.call('ZRANGE', q.waiters, '-inf', q.now - WAITER_GONE_MS, 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
    for i = 1, #gone, 2 do
      if gone[i] ~= waiter then
        batch:rem(q.waiters, gone[i], gone[i + 1])
      end
    end
    local place = math.floor(look_at) - (passes and 0.5 or 0) + (by_hand and 0.25 or 0)
    batch:add(q.waiters, waiter, place, before)
    any = true
  elseif before then
    batch:rem(q.waiters, waiter, before)
    any = true
  end
  if any then
    batch:commit(q)
  end
end

return {
  leased_to = leased_to, same_again = same_again, take = take, next_in = next_in, is_due = is_due,
  pass_on = pass_on, sleep_on = sleep_on, stand_by = stand_by,
}
