-- Sweeping: when a client died or leaves, its jobs go back to the queue.

local RECORD_EVERY_MS, MAX_CALL_BYTES = keys.RECORD_EVERY_MS, keys.MAX_CALL_BYTES
local in_chunks = keys.in_chunks
local expiry_cutoff = keys.expiry_cutoff
local count = stats.count
local new_batch = batch.new
local SWEPT, lease_name, id_of = client.SWEPT, client.lease_name, client.id_of
local lease_range, forget_client = client.lease_range, client.forget_client
local add_broken, unreadable = records.add_broken, records.unreadable
local read_run, end_run, commit_runs = endings.read_run, endings.end_run, endings.commit_runs

-- Bounds of one sweep: no call takes long, however many leases expire together.
local SWEEP_CLIENTS = 10
local SWEEP_JOBS = 100

local function new_budget()
  return { jobs = SWEEP_JOBS, bytes = MAX_CALL_BYTES }
end

local function has_budget(budget)
  return budget.jobs > 0 and budget.bytes > 0
end

-- Quarantines an active job with an unreadable lease. Returns how many bytes of payload it handled.
local function quarantine_run(q, batch, client, id, active, info)
  local data = redis.call('HGET', q.data, id)
  add_broken(q, id, unreadable('the lease of this job cannot be read'), data)
  batch:rem(q.leases, lease_name(client, id), '0')
  batch:del(q.active, id, active)
  local held = redis.call('HGET', q.blocked, id)
  if held then
    batch:del(q.blocked, id, held)
  end
  if info then
    batch:del(q.info, id, info)
  end
  if data then
    batch:del(q.data, id, data)
  end
  count(q, 'broken')
  return #(data or '') + #(held or '')
end

-- Ends the lease of a run; returns how many bytes of payload it handled.
local function end_counted(q, batch, run, verb)
  if run.cancelled then
    run.data = redis.call('HGET', q.data, run.id) -- read the payload here, so that it counts
  end
  end_run(q, batch, run, verb)
  return #(run.data or '') + #(run.held_data or run.old_held or '')
end

-- Ends leases of one client with `verb` while the budget lasts. Returns how many leases ended, and
-- whether those were all.
local function end_leases(q, batch, client, budget, verb)
  if client:find(':', 1, true) then
    return 0, true -- not the name of a client: the range would match leases of another client
  end
  local low, high = lease_range(client)
  local leases = redis.call('ZRANGE', q.leases, low, high, 'BYLEX', 'LIMIT', 0, budget.jobs + 1)
  local ids = {}
  for i = 1, math.min(#leases, budget.jobs) do
    ids[i] = id_of(leases[i], client)
  end
  local active = in_chunks('HMGET', q.active, ids)
  local infos = in_chunks('HMGET', q.info, ids)
  local ended = 0
  for i, id in ipairs(ids) do
    if not has_budget(budget) then
      break
    end
    local held = active[i] and redis.call('HGET', q.blocked, id)
    local run = active[i] and read_run(id, active[i], infos[i], held)
    local bytes = 0
    if run and run.client == client then
      bytes = end_counted(q, batch, run, verb)
    elseif run or not active[i] then
      batch:rem(q.leases, lease_name(client, id), '0') -- the job is not leased to this client
    else
      bytes = quarantine_run(q, batch, client, id, active[i], infos[i])
    end
    ended = ended + 1
    budget.jobs, budget.bytes = budget.jobs - 1, budget.bytes - bytes
  end
  return ended, ended == #leases
end

-- Ends the leases of one client and, if those were all, forgets the client.
local function end_client(q, batch, client, budget, verb)
  local ended, all = end_leases(q, batch, client, budget, verb)
  q.leaving = nil -- `commit_runs` need not forget the client: this function or a later sweep does
  if all then
    forget_client(q, batch, client)
  else
    batch:set(q.requests, client, SWEPT, redis.call('HGET', q.requests, client))
  end
  return ended, all
end

-- Puts the jobs of dead clients back into the queue. One call is bounded: the next one continues.
local function sweep(q)
  local dead = redis.call('ZRANGE', q.clients, '-inf', expiry_cutoff(q), 'BYSCORE',
    'LIMIT', 0, SWEEP_CLIENTS)
  if #dead == 0 then
    -- A sweep that finds nothing must record the contact, too. Otherwise every poll would seem the
    -- first after an outage. The same if the clock was set back.
    if math.abs(q.now - (q.last_contact or q.now)) > RECORD_EVERY_MS then
      new_batch():commit(q)
    end
    return 0
  end
  local batch, budget, ended = new_batch(), new_budget(), 0
  for _, client in ipairs(dead) do
    if has_budget(budget) then
      local verb = client:byte(1) == 126 and 'expiry' or 'stall' -- '~': a pull client
      ended = ended + (end_client(q, batch, client, budget, verb))
    end
  end
  commit_runs(q, batch)
  -- At least 1, so that the caller continues: the clients swept now may have had no leases, while
  -- dead clients that are left may have many.
  return math.max(ended, 1)
end

-- Releases the jobs of a client that is gone.
local function evict(q, client)
  local known = redis.call('ZSCORE', q.clients, client)
  if not known and redis.call('ZLEXCOUNT', q.leases, lease_range(client)) == 0 then
    return { 'absent', 0 }
  end
  local batch = new_batch()
  local ended, all = end_client(q, batch, client, new_budget(), 'release')
  commit_runs(q, batch)
  return { all and 'gone' or 'more', ended }
end

return {
  sweep = sweep, evict = evict,
}
