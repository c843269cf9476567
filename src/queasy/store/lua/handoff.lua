-- Hand-off: a waiter that takes hand-offs receives a job in the message that wakes it. It need not
-- dequeue, so the job starts one round trip sooner.
--
-- The job is leased to the client as if it had dequeued. A message is lost only together with its
-- connection. The client then reconciles: it compares its leases with those that the server
-- reports, and releases those that it does not know.

local lease_expiry = client.lease_expiry
local notify, is_subscribed = waking.notify, waking.is_subscribed
local ensure_timely_poll, wake_after_call = waking.ensure_timely_poll, waking.wake_after_call
local takes_handoffs = waiters.takes_handoffs
local settle = settle.settle
local take = take.take

-- A longer payload is not worth a copy in a message.
local MAX_HANDOFF_BYTES = 65536

-- If the client's host vanishes, the job waits until the lease expires. So a client whose lease
-- lasts longer than this receives no hand-off. A client that waits for eight seconds, as most do,
-- has a lease of 21 seconds.
local MAX_LEASE_LEFT_MS = 22000

-- Makes the job wait as before, without a wake-up: no client received a message about it.
local function undo_lease(q, id, token)
  settle(q, { 'release', id, token, '' }, 1, 1)
end

-- Hands the one job that became due in this call to the first waiter. Returns whether it did.
local function hand_off(q)
  local client = redis.call('ZRANGE', q.waiters, 0, 0)[1]
  if not client or not takes_handoffs(q, client) then
    return false
  end
  -- The client is idle, so its lease lasts until after its next poll and need not be extended.
  local expiry = lease_expiry(q, client)
  local left = expiry and tonumber(expiry) - q.now
  -- If it listens to another server, the lease would be undone although it runs the job.
  if not left or left <= 0 or left > MAX_LEASE_LEFT_MS or not is_subscribed(q, client) then
    return false
  end
  -- As if beside infinitely many jobs: a suspect is not handed off.
  local jobs = take(q, { client = client, old_expiry = expiry, request = '' }, expiry, 1, math.huge)
  local id, token, run_at, data, info = unpack(jobs)
  if not id then
    return false
  end
  if #data > MAX_HANDOFF_BYTES then
    undo_lease(q, id, token)
    return false
  end
  local lengths = string.format(':%d:%d:', #id, #info)
  local message = 'job:' .. token .. ':' .. run_at .. lengths .. id .. info .. data
  if not notify(q, client, message) then
    undo_lease(q, id, token)
    return false
  end
  return true
end

-- Hands off or wakes, at the end of a call that dispatched jobs. The client that receives a
-- hand-off was the next to poll, and may be busy with the job: another client has to poll in time.
-- If the hand-off fails for any reason, the job is dispatched all the same, and a waiter is woken
-- for it.
local function hand_off_or_wake(q)
  if q.due == 1 and q.broken_at and not q.paused then
    local ok, sent = pcall(hand_off, q)
    if ok and sent then
      return ensure_timely_poll(q)
    end
    q.due = 1 -- `undo_lease` may have changed it
  end
  wake_after_call(q)
end

return {
  hand_off_or_wake = hand_off_or_wake,
}
