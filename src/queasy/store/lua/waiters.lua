-- Waiters: clients that sleep until there is work.
--
-- A waiter has an entry in `waiters`: the time at which it polls at the latest, in whole
-- milliseconds. Its record in `waiter_info`, a packed map, says what it accepts:
--   beside   how many other jobs its process has; absent if none
--   hand     true if it takes hand-offs (handoff.lua)
-- A waiter that has no other jobs and takes no hand-offs has no record. Only this module writes
-- records and removes entries, so an entry and its record end together. A field that this module
-- does not know was written by a later revision. If ignoring the field would be wrong, that
-- revision has raised the format of the queue, and this library refuses the queue.
--
-- The host is not in the record, but in the id of the client (client.lua), because clients that do
-- not wait have a host, too. Besides, a settle may compare the hosts of many waiters, and need not
-- read their records for that.

local CHUNK, waiter_info_key = keys.CHUNK, keys.waiter_info_key
local new_batch = batch.new
local unpack_table = job.unpack_table

-- A waiter that should have polled this long ago is gone.
local WAITER_GONE_MS = 60000

-- The record of a waiter that sleeps with these arguments of a dequeue; nil if it needs none.
local function write_record(args)
  local beside, hand = args.beside > 0 and args.beside or nil, args.takes_handoffs or nil
  return (beside or hand) and cmsgpack.pack({ beside = beside, hand = hand }) or nil
end

-- The fields of a record; nil if it cannot be read: another program may have written anything
-- there. A waiter whose record cannot be read counts as one without a record.
local function read_record(raw)
  local record = unpack_table(raw)
  local beside = record and record.beside
  if not record or beside and type(beside) ~= 'number' then
    return nil
  end
  return { beside = beside or 0, hand = record.hand == true }
end

-- Has `batch` remove the entry and the record of a client. Returns whether it was a waiter.
local function forget(q, batch, waiter)
  local poll_at = redis.call('ZSCORE', q.waiters, waiter)
  if poll_at then
    batch:rem(q.waiters, waiter, poll_at)
    batch:del_unread(waiter_info_key(q), waiter)
  end
  return poll_at ~= false
end

-- Removes a waiter at once, for use after everything is written: best effort.
local function remove(q, waiter)
  redis.pcall('ZREM', q.waiters, waiter)
  redis.pcall('HDEL', waiter_info_key(q), waiter)
end

-- Has `batch` remove up to 100 waiters that are gone, but not `waiter`.
local function forget_gone(q, batch, waiter)
  local gone = redis.call('ZRANGE', q.waiters, '-inf', q.now - WAITER_GONE_MS, 'BYSCORE',
    'LIMIT', 0, 100, 'WITHSCORES')
  for i = 1, #gone, 2 do
    if gone[i] ~= waiter then
      batch:rem(q.waiters, gone[i], gone[i + 1])
      batch:del_unread(waiter_info_key(q), gone[i])
    end
  end
end

-- The client of a dequeue becomes a waiter that polls at `poll_at` at the latest. Removes waiters
-- that are gone.
local function add(q, args, poll_at)
  local waiter, batch = args.waiter, new_batch()
  forget_gone(q, batch, waiter)
  local old_poll_at = redis.call('ZSCORE', q.waiters, waiter)
  batch:add(q.waiters, waiter, math.floor(poll_at), old_poll_at)
  -- a client that was not a waiter has no record
  local key, record = waiter_info_key(q), write_record(args)
  local old_record = old_poll_at and redis.call('HGET', key, waiter) or nil
  if record and record ~= old_record then
    batch:set(key, waiter, record, old_record)
  elseif old_record and not record then
    batch:del(key, waiter, old_record)
  end
  batch:commit(q)
end

-- The client of a dequeue stops being a waiter, if it was one.
local function leave(q, waiter)
  if #redis.call('ZRANGE', q.waiters, 0, 0) == 0 then
    q.no_waiters = true -- `ensure_timely_poll` need not read them
    return
  end
  local batch = new_batch()
  if forget(q, batch, waiter) then
    batch:commit(q)
  end
end

local function takes_handoffs(q, waiter)
  local record = read_record(redis.pcall('HGET', waiter_info_key(q), waiter))
  return record and record.hand
end

-- The first waiters, CHUNK at most, and for each whether its process has other jobs: two lists.
local function first_waiters(q)
  local waiters = redis.pcall('ZRANGE', q.waiters, 0, CHUNK - 1)
  if waiters.err or #waiters == 0 then
    return {}, {}
  end
  local records = redis.pcall('HMGET', waiter_info_key(q), unpack(waiters))
  local busy = {}
  for i = 1, #waiters do
    local record = records[i] and read_record(records[i])
    busy[i] = record and record.beside > 0
  end
  return waiters, busy
end

return {
  read_record = read_record, forget = forget, remove = remove, add = add, leave = leave,
  takes_handoffs = takes_handoffs, first_waiters = first_waiters,
}
