-- Dequeue: due jobs, oldest first, each under a lease of the client that asks.

-- Who holds more leases than this has the ids of its last batch kept with its request: a repeat
-- of that must not look through all its leases.
local FEW_LEASES = 100

-- How many payloads are read at once, before their bytes are counted: few, and more when those
-- were small.
local SOME = 5
local SOME_SMALL = 25
local SMALL = 10000

-- How many suspects one who passes over them looks behind, a page at a time.
local SIGHT = 1000
local PAGE = 100

-- The last two digits of a token, as text.
local LOW = {}

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
local function quarantine(q, batch, id, data, info, message)
  local problem = { kind = 'broken', type = 'Unreadable', message = message }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
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
  local payloads, bytes, first, n = {}, 0, 1, #ids
  while first <= n do
    if bytes >= BYTES then
      break
    end
    local some = first > 1 and bytes < first * SMALL and SOME_SMALL or SOME
    local last = math.min(first + some - 1, n)
    local part = redis.call('HMGET', q.data, unpack(ids, first, last))
    for i = first, last do
      local data = part[i - first + 1]
      payloads[i] = data
      bytes = bytes + (data and #data or 0)
    end
    first = last + 1
  end
  return payloads
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

-- Whether somebody holds this job, as `active` says.
local function is_held(q, id, active)
  local token, _, client = read_active(active)
  return token and redis.call('ZSCORE', q.leases, lease_of(client, id)) and true or false
end

-- A job that waits and is active, which it can only be by somebody's hand: its run goes on, and
-- what waits is set aside.
local function set_apart(q, id, data)
  local problem = { kind = 'broken', type = 'Unreadable', message = 'the job was waiting and active at once' }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
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
    local found, found_scores, n = {}, {}, #page / 2
    for i = 1, n do
      found[i], found_scores[i] = page[2 * i - 1], page[2 * i]
    end
    local found_infos = any_of(q.info, found)
    if not passes then
      return found, found_scores, found_infos
    end
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

-- The next token, as text. What hundred tokens have in common is formatted once: by itself each would
-- take longer than anything else about a job.
local function next_token(q)
  q.token = q.token + 1
  local low = q.token % 100
  if q.token < 100 then
    return string.format('%.0f', q.token)
  elseif low == 0 or not q.token_head then
    q.token_head = string.format('%.0f', (q.token - low) / 100)
  end
  LOW[low] = LOW[low] or string.format('%02.0f', low)
  return q.token_head .. LOW[low]
end

-- The same time with so many zeros that the server makes a table of the hash that it stands in, which
-- it else searches from end to end until there are 512 entries. One such value will do.
local function long_form(run_at)
  if not run_at:find('^%d+%.?%d*$') then
    return run_at -- whatever somebody put there, zeros might change it
  end
  return run_at .. (run_at:find('.', 1, true) and '' or '.') .. '0000000000000000000000000000000000000000'
end

-- Whoever takes a batch makes a table of `leases` too: of a zset it decides by its members, so a long
-- one is put in first and taken out again in the same commit. No lease is named so.
local MANY_LEASES = 16
local LONG_MEMBER = '------------------------------------------------------------------------'

-- Leases up to `limit` due jobs, until `expiry`, to the client that `asks`: with a request, and with
-- what the server has of it, old_expiry and old_request. Flat: id, token, run_at, data, info of each.
-- A suspect comes alone: the batch ends before it, or is that one job; and it ends when it has
-- enough bytes.
local function take(q, asks, expiry, limit, passes)
  local ids, scores, infos, all = find_due(q, limit, passes)
  if #ids == 0 then
    return {}
  end
  local payloads = first_payloads(q, ids)
  q.none_left = all and #payloads == #ids
  local active = any_of(q.active, ids)
  -- Tokens follow the clock: one that was given out is not given out again although the server
  -- forgot about it (a crash, a failover to a replica that lagged behind).
  q.token = math.max(q.token, math.floor(q.now * 1000))
  local batch, jobs, n, done, client = Batch.new(), {}, 0, 0, asks.client
  if #payloads >= MANY_LEASES then
    batch:add(q.leases, LONG_MEMBER, '0')
    batch:rem(q.leases, LONG_MEMBER)
  end
  for i = 1, #payloads do
    local id, score, data, info = ids[i], scores[i], payloads[i], infos[i]
    local record = info and read_info(info)
    local suspect = record and record.suspect
    if active[i] and is_held(q, id, active[i]) then
      set_apart(q, id, data)
    elseif not data then
      quarantine(q, batch, id, nil, info, 'the payload is missing')
    elseif info and not record then
      quarantine(q, batch, id, data, info, 'the record of this job cannot be read')
    elseif suspect and n > 0 then
      break
    else
      local token = next_token(q)
      -- The server has no other scores that are no times.
      local run_at = (score == 'inf' or score == '-inf') and string.format('%.17g', q.now) or score
      local held = pack_active(token, n == 0 and long_form(run_at) or run_at, client)
      batch:set(q.active, id, held, active[i])
      batch:add(q.leases, lease_of(client, id), '0')
      jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5] = id, token, run_at, data, info or ''
      n = n + 5
      if suspect then
        done = i
        break
      end
    end
    done = i
  end
  batch:rem_all(q.waiting, ids, scores, done) -- whatever became of them
  if n > 0 then
    count(q, 'dequeued', n / 5)
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
  local batch = Batch.new()
  batch:add(q.clients, client, expiry, redis.call('ZSCORE', q.clients, client))
  batch:commit(q)
  return 0
end

-- Takes a client out of those to be woken, or (with the time at which it looks by itself)
-- puts it there, in place of some who are gone.
local function stand_by(q, waiter, look_at, passes, by_hand)
  local before = redis.call('ZSCORE', q.waiters, waiter)
  local batch, any = Batch.new(), false
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
