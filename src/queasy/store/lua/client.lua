-- Clients: which are alive, and what the server stores about them.

local CHUNK = keys.CHUNK
local new_batch = batch.new
local read_active = job.read_active
local forget_waiter = waiters.forget

-- In `requests`: a sweep has returned some jobs of this client and will return the rest. The client
-- is dead already, although `clients` still has its lease.
local SWEPT = 'swept'

-- In `requests`: the queue was destroyed while this client was alive. The client has lost all that
-- it held, and may register again. Until then its bumps keep this mark.
local DESTROYED = 'destroyed'

-- The expiry of the client's lease, and its last request; nil if the client is dead, and then SWEPT
-- or DESTROYED as the second result, if it has such a mark.
local function lease_expiry(q, client)
  local expiry = redis.call('ZSCORE', q.clients, client)
  local request = expiry and redis.call('HGET', q.requests, client)
  if request == SWEPT or request == DESTROYED then
    return nil, request
  end
  return expiry or nil, request or nil
end

-- Whether a numbered request is older than `known`, the client's last one: it was delayed, and the
-- client has given it up and sent another.
local function is_overtaken(request, known)
  return request:find('^%d+$') and known:find('^%d+$') and tonumber(request) < tonumber(known)
end

-- Records a request that took nothing, so that older requests are recognised as overtaken.
local function record_request(q, client, request, old)
  local batch = new_batch()
  batch:set(q.requests, client, request .. ' 0 0', old)
  batch:commit(q)
end

-- Whether a client was made for one lease, and ends with it. The id of such a client begins with
-- one `~`. A consumer, whose id begins with two, is registered and holds many leases.
local function is_for_one_lease(client)
  local first, second = client:byte(1, 2)
  return first == 126 and second ~= 126 -- '~'
end

-- The host of a client: its id may begin with `h`, eight hexadecimal digits that stand for the
-- host, and a hyphen; that of a consumer after its `~~`. Any other client counts as a host of its
-- own.
local function host_of(client)
  return client:match('^~*(h%x%x%x%x%x%x%x%x%-)') or client
end

-- The group of a client: those that end together, because they have one supervisor or are in one
-- process. After the host, its id may have `g`, eight hexadecimal digits, and a hyphen. Any other
-- client counts as a group of its own.
local function group_of(client)
  return client:match('^~*(h%x%x%x%x%x%x%x%x%-g%x%x%x%x%x%x%x%x%-)') or client
end

-- In `leases` and `cancels`, the jobs of one client are a range of names.
local function lease_name(client, id)
  return client .. ':' .. id
end

local function id_of(lease, client)
  return lease:sub(#client + 2)
end

local function lease_range(client)
  return '[' .. client .. ':', '(' .. client .. ';'
end

-- Removes what the server stores about a client, except its leases.
local function forget_client(q, batch, client)
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
  forget_waiter(q, batch, client)
end

-- The requested cancels of a client's runs: id and token of each.
local function cancels_of(q, client)
  local low, high = lease_range(client)
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

-- Extends the leases of clients. The reply says for each whether it is alive, and which runs to
-- cancel. `reply[4]` says that the client is lost because the queue was destroyed.
local function bump(q, lease_ms, clients)
  local batch, replies, any = new_batch(), {}, false
  for i, client in ipairs(clients) do
    local expiry, mark = lease_expiry(q, client)
    if expiry then
      local new_expiry = q.now + lease_ms
      if redis.call('ZLEXCOUNT', q.leases, lease_range(client)) == 0 then
        new_expiry = math.max(new_expiry, tonumber(expiry)) -- an idle client has a longer lease
      end
      batch:add(q.clients, client, new_expiry, expiry)
      replies[i] = { 'ok', cancels_of(q, client) }
      any = true
    elseif mark == DESTROYED then
      batch:add(q.clients, client, q.now + lease_ms, redis.call('ZSCORE', q.clients, client))
      replies[i] = { 'lost', {}, nil, DESTROYED }
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

-- Creates a client, or renews its lease. A client that was swept in part stays dead.
local function register_client(q, client, lease_ms, worker)
  local request = redis.call('HGET', q.requests, client)
  if request == SWEPT then
    return 'lost'
  end
  local batch = new_batch()
  if request == DESTROYED then
    batch:del(q.requests, client, DESTROYED)
  end
  batch:add(q.clients, client, q.now + lease_ms, redis.call('ZSCORE', q.clients, client))
  if worker ~= '' then
    batch:set(q.workers, client, worker, redis.call('HGET', q.workers, client))
  end
  batch:commit(q)
  return 'ok'
end

-- Extends the lease of the client that holds job `id` with the token `expected`.
local function extend_lease(q, id, expected, lease_ms)
  local token, _, client, cancelled = read_active(redis.call('HGET', q.active, id) or '')
  local expiry = token == expected and lease_expiry(q, client)
  if not expiry then
    return 'lost'
  end
  local new_expiry = q.now + lease_ms
  if not is_for_one_lease(client) and new_expiry < tonumber(expiry) then
    -- an extension for one job must not shorten the lease of the client's other jobs
    new_expiry = tonumber(expiry)
  end
  local batch = new_batch()
  batch:add(q.clients, client, new_expiry, expiry)
  batch:commit(q)
  return cancelled and 'cancel' or 'ok'
end

return {
  SWEPT = SWEPT, DESTROYED = DESTROYED, lease_expiry = lease_expiry, is_overtaken = is_overtaken,
  record_request = record_request, is_for_one_lease = is_for_one_lease,
  host_of = host_of, group_of = group_of,
  lease_name = lease_name, id_of = id_of,
  lease_range = lease_range, forget_client = forget_client, cancels_of = cancels_of, bump = bump,
  register_client = register_client, extend_lease = extend_lease,
}
