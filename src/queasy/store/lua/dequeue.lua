-- Dequeue: end leases, sweep, take due jobs, and register the client as a waiter, in one call.

local MOST, dead_line = keys.MOST, keys.dead_line
local new_batch = batch.new
local unpack_table = job.unpack_table
local alive, is_overtaken, note_request = client.alive, client.is_overtaken, client.note_request
local range_of, cancels_of, bump = client.range_of, client.cancels_of, client.bump
local WAITER_GONE_MS, wake = waking.WAITER_GONE_MS, waking.wake
local wake_for_suspects, next_job = waking.wake_for_suspects, waking.next_job
local next_to_come, next_event = waking.next_to_come, waking.next_event
local wake_all = endings.wake_all
local settle = settle.settle
local leased_to, same_again, find_due = take.leased_to, take.same_again, take.find_due
local take = take.take
local sweep = sweep.sweep

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

-- Sweeps, then takes jobs for a client that is alive: what became of it, and the jobs.
local function sweep_and_take(q, client, expiry_in, limit, id, passes)
  local one_lease = client:byte(1) == 126 -- '~'
  local expiry, request = alive(q, client)
  if not expiry and (request or not one_lease) then
    return 'lost', {}
  end
  if expiry and tonumber(expiry) <= dead_line(q) then
    bump(q, expiry_in, { client }) -- it asks, so it lives: renew before the sweep sees it
    expiry = redis.call('ZSCORE', q.clients, client)
  end
  sweep(q)
  local same, first, last, packed = tostring(request or ''):match('^(%S+) (%d+) (%d+) ?(.*)$')
  if one_lease and expiry then
    return 'ok', same_again(q, client, leased_to(q, client), 0, math.huge)
  elseif same and same == id then
    local ids = unpack_table(packed) or leased_to(q, client)
    return 'ok', same_again(q, client, ids, tonumber(first), tonumber(last))
  elseif same and is_overtaken(id, same) then
    return 'overtaken', {} -- most likely nobody hears this: what it took would be nobody's
  end
  if limit == 0 and id ~= '' and not one_lease then
    note_request(q, client, id, request)
  end
  if q.paused then
    return 'paused', {}
  elseif limit == 0 then
    return 'ok', {}
  end
  local asks = { client = client, old_expiry = expiry, old_request = request, request = not one_lease and id or '' }
  return 'ok', take(q, asks, q.now + expiry_in, limit, passes)
end

-- Whether the client is to wait: it asked to, got nothing and is alive. A client without room that
-- finds a job due does not wait: the reply says that the job is there.
local function is_to_wait(q, ask, state, jobs)
  if ask.waits_ms == 0 or #jobs > 0 or state == 'lost' then
    return false
  end
  return ask.limit > 0 or not is_due(q, ask.passes)
end

-- Wakes other clients for what this one left.
local function wake_others(q, ask, state, jobs, next_look)
  wake_all(q)
  if q.passed then
    wake_for_suspects(q, 1) -- this client may have been woken in place of one that takes suspects
  end
  local has_no_use = ask.limit == 0 and ask.waits_ms == 0 and state == 'ok'
  local was_cut_short = #jobs > 0 and next_look == 0
  if has_no_use or was_cut_short then
    pass_on(q)
  end
end

-- The whole of a dequeue; `ask` is what `dequeue_arg` read. The leases to end are in `argv`.
local function dequeue(q, ask, argv)
  local client, limit = ask.client, ask.limit
  local sender = client:byte(1) ~= 126 and client -- '~'
  local settled, lost = settle(q, argv, ask.first_ending, ask.endings, ask.finishes, sender)
  local state, jobs = sweep_and_take(q, client, ask.lease_ms, limit, ask.request, ask.passes)
  local waits, held = is_to_wait(q, ask, state, jobs), 0
  if waits then
    held = sleep_on(q, client, q.now + 2 * ask.waits_ms + ask.lease_ms)
  end
  local wants_next = limit == 0 or #jobs < limit * 5
  local next_look = wants_next and state ~= 'lost' and next_in(q, ask.passes) or -1
  if ask.waiter then
    local look_in = next_look >= 0 and math.min(next_look, ask.waits_ms) or ask.waits_ms
    stand_by(q, ask.waiter, waits and q.now + look_in, ask.passes, ask.by_hand)
  end
  wake_others(q, ask, state, jobs, next_look)
  local cancels = cancels_of(q, client)
  if not ask.gives_finishes then -- a client of an older revision, which counts the values of a reply
    return { state, next_look, settled, jobs, cancels }
  end
  return { state, next_look, settled, jobs, cancels, lost, held }
end

return {
  pass_on = pass_on, dequeue = dequeue,
}
