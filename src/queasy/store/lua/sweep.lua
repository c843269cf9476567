-- Sweeping: the jobs of clients that died, or leave.

local OUTAGE_MS, BYTES, many, dead_line = keys.OUTAGE_MS, keys.BYTES, keys.many, keys.dead_line
local count = stats.count
local new_batch = batch.new
local join = job.join
local SWEPT, lease_of, id_of = client.SWEPT, client.lease_of, client.id_of
local range_of, forget = client.range_of, client.forget
local keep_failed = records.keep_failed
local read_run, end_run, commit_runs = endings.read_run, endings.end_run, endings.commit_runs

-- What one sweep may do, so that no call takes long however many leases end together.
local SWEEP_CLIENTS = 10
local SWEEP_JOBS = 100

local function new_room()
  return { jobs = SWEEP_JOBS, bytes = BYTES }
end

local function is_left(room)
  return room.jobs > 0 and room.bytes > 0
end

-- A lease whose job cannot be read any more.
local function quarantine_run(q, batch, client, id, active, info)
  local problem = { kind = 'broken', type = 'Unreadable', message = 'the lease of this job cannot be read' }
  local data = redis.call('HGET', q.data, id)
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
  batch:rem(q.leases, lease_of(client, id), '0')
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

-- Ends the lease of a run; returns how many bytes of payload that took.
local function end_one(q, batch, run, verb)
  if run.cancelled then
    run.data = redis.call('HGET', q.data, run.id) -- or `commit` may read all of them, unbounded
  end
  end_run(q, batch, run, verb)
  return #(run.data or '') + #(run.held_data or run.old_held or '')
end

-- Ends leases of one client with `verb` while there is room, but those of jobs that are not in
-- `started` (nil: all are) as released. Returns how many it ended, and whether that was all of them.
local function end_leases(q, batch, client, room, verb, started)
  if client:find(':', 1, true) then
    return 0, true -- no client has such a name: these would be leases of another
  end
  local low, high = range_of(client)
  local leases = redis.call('ZRANGE', q.leases, low, high, 'BYLEX', 'LIMIT', 0, room.jobs + 1)
  local ids = {}
  for i = 1, math.min(#leases, room.jobs) do
    ids[i] = id_of(leases[i], client)
  end
  local active = many('HMGET', q.active, ids)
  local infos = many('HMGET', q.info, ids)
  local ended = 0
  for i, id in ipairs(ids) do
    if not is_left(room) then
      break
    end
    local held = active[i] and redis.call('HGET', q.blocked, id)
    local run = active[i] and read_run(id, active[i], infos[i], held)
    local bytes = 0
    if run and run.client == client then
      bytes = end_one(q, batch, run, started and not started[id] and 'release' or verb)
    elseif run or not active[i] then
      batch:rem(q.leases, lease_of(client, id), '0') -- a lease of nothing
    else
      bytes = quarantine_run(q, batch, client, id, active[i], infos[i])
    end
    ended = ended + 1
    room.jobs, room.bytes = room.jobs - 1, room.bytes - bytes
  end
  return ended, ended == #leases
end

-- Ends the leases of one client and, when that was all, the client.
local function end_client(q, batch, client, room, verb, started)
  local ended, all = end_leases(q, batch, client, room, verb, started)
  q.leaving = nil -- it leaves here in any case
  if all then
    forget(q, batch, client)
  else
    batch:set(q.requests, client, SWEPT, redis.call('HGET', q.requests, client))
  end
  return ended, all
end

-- Returns the jobs of dead clients. Bounded, and the next call goes on where it stopped.
local function sweep(q)
  local dead = redis.call('ZRANGE', q.clients, '-inf', dead_line(q), 'BYSCORE', 'LIMIT', 0, SWEEP_CLIENTS)
  if #dead == 0 then
    -- Who looks is heard: or every look would seem to be the first after an outage.
    if q.now - (q.heard or q.now) > OUTAGE_MS / 2 then
      new_batch():commit(q)
    end
    return 0
  end
  local batch, room, ended = new_batch(), new_room(), 0
  for _, client in ipairs(dead) do
    if is_left(room) then
      ended = ended + (end_client(q, batch, client, room, 'stall'))
    end
  end
  commit_runs(q, batch)
  return math.max(ended, 1) -- clients without a lease may stand before some with many
end

-- Takes the jobs of one client away now: `death` when somebody saw it die, `release` when it leaves.
local function evict(q, client, verb, started)
  local known = redis.call('ZSCORE', q.clients, client)
  if not known and redis.call('ZLEXCOUNT', q.leases, range_of(client)) == 0 then
    return { 'absent', 0 }
  end
  local batch = new_batch()
  local ended, all = end_client(q, batch, client, new_room(), verb, started)
  commit_runs(q, batch)
  return { all and 'gone' or 'more', ended }
end

return {
  sweep = sweep, evict = evict,
}
