-- Handing out: who waits, and said that it takes jobs by hand, is given one with the message that
-- wakes it. It has no need to ask, and runs the job sooner by a way to the server and back.
--
-- The job is taken for it as if it had asked. A message that is lost is lost with the connection it
-- was on; then the client compares what it holds with what the server says it does, and gives back
-- what it never heard of.

local channel = keys.channel
local alive = client.alive
local tell, watch, wake_for = waking.tell, waking.watch, waking.wake_for
local settle = settle.settle
local take = take.take

-- What is longer is not worth a copy in a message.
local HANDED_BYTES = 65536

-- Whose host vanished without a word keeps what it was handed until its lease is over: so long at most.
local LONGEST_MS = 30000

-- Takers by hand stand a quarter of a millisecond behind the others: see `stand_by`.
local function takes_by_hand(look_at)
  return (tonumber(look_at) or 0) % 0.5 == 0.25
end

-- Whether the client hears what is said on this server. One that listens to a replica, as to what was the
-- primary before, hears it as well, but nobody tells here: it would run what is taken back, as unheard.
local function hears(q, client)
  local listeners = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel(q, client))
  return (listeners[2] or 0) > 0
end

-- Nothing was said of it: the job waits as before.
local function take_back(q, id, token)
  settle(q, { 'release', id, token, '', '' }, 1, 1, {})
end

-- Whether the one job that became due in this call was given to somebody.
local function hand_out(q)
  local first = redis.call('ZRANGE', q.waiters, 0, 0, 'WITHSCORES')
  local client = first[1]
  if not client or not takes_by_hand(first[2]) then
    return false
  end
  -- It sleeps, so its lease lasts until after it would look by itself: nothing need be added.
  local expiry = alive(q, client)
  local left = expiry and tonumber(expiry) - q.now
  if not left or left <= 0 or left > LONGEST_MS or not hears(q, client) then
    return false
  end
  local jobs = take(q, { client = client, old_expiry = expiry, request = '' }, expiry, 1, true)
  local id, token, run_at, data, info = unpack(jobs)
  if not id then
    return false
  end
  if #data > HANDED_BYTES then
    take_back(q, id, token)
    return false
  end
  local lengths = string.format(':%d:%d:', #id, #info)
  local message = 'job:' .. token .. ':' .. run_at .. lengths .. id .. info .. data
  if not tell(q, client, message) then
    take_back(q, id, token)
    return false
  end
  return true
end

-- At the end of a call that put jobs. Whoever was handed one may be held up by it, and it was the first to
-- look: another keeps the time. What goes wrong in handing out is nobody's trouble: the job is put, and
-- somebody is woken for it.
local function hand_out_or_wake(q)
  if q.due == 1 and q.leases and not q.paused then
    local ok, handed = pcall(hand_out, q)
    if ok and handed then
      return watch(q)
    end
    q.due = 1 -- also when it was taken back
  end
  wake_for(q)
end

return {
  hand_out_or_wake = hand_out_or_wake,
}
