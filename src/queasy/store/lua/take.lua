-- Dequeue: due jobs, oldest first, each under a lease of the client that asks.

-- Who holds more leases than this has the ids of its last batch kept with its request: a repeat
-- of that must not look through all its leases.
local FEW_LEASES = 100

-- How many payloads are read at once, before their bytes are counted.
local SOME = 5

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

-- A waiting job that cannot be run: what is left of it is set aside.
local function quarantine(q, batch, id, score, data, info, message)
  local problem = { kind = 'broken', type = 'Unreadable', message = message }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
  batch:rem(q.waiting, id, score)
  if info then
    batch:del(q.info, id, info)
  end
  if data then
    batch:del_last(q.data, id)
  end
  count(q, 'broken')
end

-- The payloads of the first ids, in their order; of fewer of them when those are large.
local function first_payloads(q, ids)
  local payloads, bytes = {}, 0
  for first = 1, #ids, SOME do
    if bytes >= BYTES then
      break
    end
    local last = math.min(first + SOME - 1, #ids)
    local part = redis.call('HMGET', q.data, unpack(ids, first, last))
    for i = first, last do
      payloads[i] = part[i - first + 1]
      bytes = bytes + #(payloads[i] or '')
    end
  end
  return payloads
end

-- What is kept of a dequeue, to know it again.
local function request_of(q, client, request, first, jobs)
  local kept = string.format('%s %.0f %.0f', request, first, q.token)
  local held = redis.call('ZLEXCOUNT', q.leases, range_of(client)) + #jobs / 5
  if held <= FEW_LEASES then
    return kept
  end
  local ids = {}
  for i = 1, #jobs, 5 do
    ids[#ids + 1] = jobs[i]
  end
  return kept .. ' ' .. cmsgpack.pack(ids)
end

-- Whether somebody holds this job, as `active` says.
local function is_held(q, id, active)
  local token, _, client = read_active(active)
  return token and redis.call('ZSCORE', q.leases, lease_of(client, id)) and true or false
end

-- A job that waits and is active, which it can only be by somebody's hand: its run goes on, and
-- what waits is set aside.
local function set_apart(q, batch, id, score, data)
  local problem = { kind = 'broken', type = 'Unreadable', message = 'the job was waiting and active at once' }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
  batch:rem(q.waiting, id, score)
  count(q, 'broken')
end

-- The first `limit` due jobs: ids, scores, infos. Who `passes` leaves suspects to others; but where
-- nothing else is in sight for so many of them, all have to help. And whether those are all there
-- are for one who passes: he looks through the suspects once in a call.
local function find_due(q, limit, passes)
  local ids, scores, infos, seen, size, all = {}, {}, {}, 0, limit, passes and q.none_left
  if all then
    return ids, scores, infos, all
  end
  repeat
    local page = redis.call('ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE', 'LIMIT', seen, size, 'WITHSCORES')
    local found = {}
    for i = 1, #page, 2 do
      found[#found + 1] = page[i]
    end
    for i, info in ipairs(many('HMGET', q.info, found)) do
      if passes and is_suspect(info) then
        q.passed = true
      elseif #ids < limit then
        local n = #ids + 1
        ids[n], scores[n], infos[n] = found[i], page[2 * i], info
      end
    end
    seen = seen + #found
    all = #found < size
    size = PAGE
  until not passes or #ids == limit or all or seen >= SIGHT
  if passes and #ids == 0 and seen >= SIGHT then
    return find_due(q, limit)
  end
  all = passes and all and #ids < limit
  q.none_left = all and #ids == 0
  return ids, scores, infos, all
end

-- Leases up to `limit` due jobs to `client` until `expiry`. Flat: id, token, run_at, data,
-- info of each. A suspect comes alone: the batch ends before it, or is that one job; and it ends
-- when it has enough bytes.
local function take(q, client, expiry, limit, request, passes)
  local ids, scores, infos, all = find_due(q, limit, passes)
  if #ids == 0 then
    return {}
  end
  local payloads = first_payloads(q, ids)
  q.none_left = all and #payloads == #ids
  local active = many('HMGET', q.active, ids)
  -- Tokens follow the clock: one that was given out is not given out again although the server
  -- forgot about it (a crash, a failover to a replica that lagged behind).
  q.token = math.max(q.token, math.floor(q.now * 1000))
  local batch, jobs, n, first = Batch.new(), {}, 0, q.token + 1
  for i = 1, #payloads do
    local id, score, data, info = ids[i], scores[i], payloads[i], infos[i]
    local record = info and read_info(info)
    local suspect = record and record.suspect
    if active[i] and is_held(q, id, active[i]) then
      set_apart(q, batch, id, score, data)
    elseif not data then
      quarantine(q, batch, id, score, nil, info, 'the payload is missing')
    elseif info and not record then
      quarantine(q, batch, id, score, data, info, 'the record of this job cannot be read')
    elseif suspect and n > 0 then
      break
    else
      q.token = q.token + 1
      local token = string.format('%.0f', q.token)
      local run_at = is_time(tonumber(score)) and score or string.format('%.17g', q.now)
      batch:set(q.active, id, pack_active(token, run_at, client), active[i])
      batch:add(q.leases, lease_of(client, id), '0')
      batch:rem(q.waiting, id, score)
      jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5] = id, token, run_at, data, info or ''
      n = n + 5
      if suspect then
        break
      end
    end
  end
  if n > 0 then
    count(q, 'dequeued', n / 5)
    batch:add(q.clients, client, expiry, redis.call('ZSCORE', q.clients, client))
    if request ~= '' then
      local kept = request_of(q, client, request, first, jobs)
      batch:set(q.requests, client, kept, redis.call('HGET', q.requests, client))
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
-- look because this one might be dead, when it is merely the next to look.
local function sleep_on(q, client, expiry)
  if client:byte(1) == 126 or redis.call('ZLEXCOUNT', q.leases, range_of(client)) > 0 then -- '~'
    return
  end
  local batch = Batch.new()
  batch:add(q.clients, client, expiry, redis.call('ZSCORE', q.clients, client))
  batch:commit(q)
end

-- Takes a client out of those to be woken, or (with the time at which it looks by itself)
-- puts it there, in place of some who are gone.
local function stand_by(q, waiter, look_at, passes)
  local before = redis.call('ZSCORE', q.waiters, waiter)
  local batch, any = Batch.new(), false
  if look_at then
    local gone = redis.call('ZRANGE', q.waiters, '-inf', q.now - WAITER_GONE_MS, 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
    for i = 1, #gone, 2 do
      if gone[i] ~= waiter then
        batch:rem(q.waiters, gone[i], gone[i + 1])
      end
    end
    batch:add(q.waiters, waiter, math.floor(look_at) - (passes and 0.5 or 0), before)
    any = true
  elseif before then
    batch:rem(q.waiters, waiter, before)
    any = true
  end
  if any then
    batch:commit(q)
  end
end
