-- Clients: who is alive, and what is known of them.

local CHUNK = keys.CHUNK
local new_batch = batch.new
local read_active = job.read_active

-- In `requests`: the client lost some of its jobs to a sweep and the rest will follow. It is
-- dead already, although its lease still stands in `clients`.
local SWEPT = 'swept'

-- When its lease runs out, and its last request; nil for one who is dead, with SWEPT when it is
-- being swept.
local function alive(q, client)
  local expiry = redis.call('ZSCORE', q.clients, client)
  local request = expiry and redis.call('HGET', q.requests, client)
  if request == SWEPT then
    return nil, SWEPT
  end
  return expiry or nil, request or nil
end

-- Whether a request is older than the last, `known`, of one who numbers them: it was on its way for
-- long, and who sent it has given it up and gone on.
local function is_overtaken(request, known)
  return request:find('^%d+$') and known:find('^%d+$') and tonumber(request) < tonumber(known)
end

-- Notes a request that took nothing, so that older ones are known to be.
local function note_request(q, client, request, old)
  local batch = new_batch()
  batch:set(q.requests, client, request .. ' 0 0', old)
  batch:commit(q)
end

-- In `leases` and `cancels` the jobs of one client are a range.
local function lease_of(client, id)
  return client .. ':' .. id
end

local function id_of(lease, client)
  return lease:sub(#client + 2)
end

local function range_of(client)
  return '[' .. client .. ':', '(' .. client .. ';'
end

-- What is known of a client besides its leases.
local function forget(q, batch, client)
  local expiry = redis.call('ZSCORE', q.clients, client)
  if expiry then
    batch:rem(q.clients, client, expiry)
  end
  local request = redis.call('HGET', q.requests, client)
  if request then
    batch:del(q.requests, client, request)
  end
  local worker = redis.call('HGET', q.workers, client)
  if worker then
    batch:del(q.workers, client, worker)
  end
  local since = redis.call('ZSCORE', q.waiters, client)
  if since then
    batch:rem(q.waiters, client, since)
  end
end

-- The cancel requests for runs of one client: id, token of each.
local function cancels_of(q, client)
  local low, high = range_of(client)
  local out = {}
  for _, lease in ipairs(redis.call('ZRANGE', q.cancels, low, high, 'BYLEX', 'LIMIT', 0, CHUNK)) do
    local id = id_of(lease, client)
    local token = read_active(redis.call('HGET', q.active, id) or '')
    if token then
      out[#out + 1], out[#out + 2] = id, token
    end
  end
  return out
end

-- Extends the leases of clients; each is told whether it is alive and what to cancel.
local function bump(q, lease_ms, clients)
  local batch, replies, any = new_batch(), {}, false
  for i, client in ipairs(clients) do
    local expiry = alive(q, client)
    if expiry then
      local until_ = q.now + lease_ms
      if redis.call('ZLEXCOUNT', q.leases, range_of(client)) == 0 then
        until_ = math.max(until_, tonumber(expiry)) -- one that sleeps has said for how long
      end
      batch:add(q.clients, client, until_, expiry)
      replies[i] = { 'ok', cancels_of(q, client) }
      any = true
    else
      replies[i] = { 'lost', {} }
    end
  end
  if any then
    batch:commit(q)
  end
  return replies
end

-- Creates a client, or extends its lease. One that was swept in part stays dead.
local function register_client(q, client, lease_ms, worker)
  if redis.call('HGET', q.requests, client) == SWEPT then
    return 'lost'
  end
  local batch = new_batch()
  batch:add(q.clients, client, q.now + lease_ms, redis.call('ZSCORE', q.clients, client))
  if worker ~= '' then
    batch:set(q.workers, client, worker, redis.call('HGET', q.workers, client))
  end
  batch:commit(q)
  return 'ok'
end

-- Extends the lease of the client that holds job `id` with this token.
local function extend_lease(q, id, expected, lease_ms)
  local token, _, client, cancelled = read_active(redis.call('HGET', q.active, id) or '')
  local expiry = token == expected and alive(q, client)
  if not expiry then
    return 'lost'
  end
  local until_ = q.now + lease_ms
  if client:byte(1) ~= 126 and until_ < tonumber(expiry) then
    until_ = tonumber(expiry) -- one short extension must not shorten the lease of its other jobs
  end
  local batch = new_batch()
  batch:add(q.clients, client, until_, expiry)
  batch:commit(q)
  return cancelled and 'cancel' or 'ok'
end

return {
  SWEPT = SWEPT, alive = alive, is_overtaken = is_overtaken, note_request = note_request,
  lease_of = lease_of, id_of = id_of, range_of = range_of, forget = forget, cancels_of = cancels_of,
  bump = bump, register_client = register_client, extend_lease = extend_lease,
}
