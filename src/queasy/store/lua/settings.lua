-- The settings of a queue.

local CHUNK, NAMES, FORMAT, refuse = keys.CHUNK, keys.NAMES, keys.FORMAT, keys.refuse
local expiry_cutoff = keys.expiry_cutoff
local DESTROYED, is_for_one_lease = client.DESTROYED, client.is_for_one_lease
local new_batch = batch.new
local unpack_table, check_options = job.unpack_table, job.check_options
local count_arg = arguments.count_arg
local wake_waiters, wake_for_all_due = waking.wake_waiters, waking.wake_for_all_due
local trim = records.trim

local function flag_text(value, name)
  if type(value) ~= 'boolean' then
    refuse('expected true or false for ' .. name)
  end
  return value and '1' or '0'
end

local function count_text(value, name)
  return string.format('%.0f', count_arg(value, name))
end

local function options_text(value)
  return cmsgpack.pack(check_options(value))
end

-- Whether the queue has a fail handler: true, false, or a number of milliseconds, for which it has
-- one from now on. A worker that has one says so again and again. So the fail queue stops growing
-- some time after the fail handler was removed from the code. A `true` stays until it is changed.
local function fail_handler_text(value, name, q, stored)
  if type(value) ~= 'number' then
    return flag_text(value, name)
  end
  return stored == '1' and stored or string.format('%.0f', q.now + count_arg(value, name))
end

-- For each setting: the text that is stored, or a refusal.
local TEXT = {
  limits = options_text, fail_handler = fail_handler_text, failed_limit = count_text,
  broken_limit = count_text, paused = flag_text,
}

-- Writes the settings in a packed map. Those that are not in it stay as they are.
local function configure(q, packed)
  local given = unpack_table(packed) or refuse('expected the settings as a packed map')
  local batch = new_batch()
  for name, value in pairs(given) do
    local text_of = TEXT[name] or refuse('unknown setting: ' .. tostring(name))
    local stored = redis.call('HGET', q.meta, name)
    batch:set(q.meta, name, text_of(value, name, q, stored), stored)
  end
  for _, kind in ipairs({ 'failed', 'broken' }) do
    local limit = given[kind .. '_limit']
    if limit then
      trim(q, batch, kind, limit, 0, {})
    end
  end
  batch:commit(q)
  if given.paused == false then
    q.paused = false
    wake_for_all_due(q)
  end
  return 'ok'
end

-- Deletes all keys of the queue, at once: UNLINK leaves the work to another thread. Without
-- `force`, only if no job is active and no client is registered. The clients that are alive get a
-- mark, so that they learn why they are lost: up to CHUNK of them, and none that was made for one
-- lease. Tokens follow the clock, so none is issued again. If they are ahead of the clock, the last
-- one stays.
local function destroy(q, force)
  local active = redis.call('HLEN', q.active)
  local alive = string.format('(%.17g', expiry_cutoff(q))
  local n = redis.call('ZCOUNT', q.clients, alive, '+inf')
  if (active > 0 or n > 0) and not force then
    return { 'active', active, n }
  end
  local clients = redis.call('ZRANGE', q.clients, alive, '+inf', 'BYSCORE', 'LIMIT', 0, CHUNK,
    'WITHSCORES')
  wake_waiters(q, CHUNK)
  redis.call('UNLINK', unpack(q.keys, 1, #NAMES))
  if q.token >= math.floor(q.now * 1000) then
    redis.call('HSET', q.meta, 'time', q.time, 'token', q.token, 'format', FORMAT)
  end
  for i = 1, #clients, 2 do
    if not is_for_one_lease(clients[i]) then
      redis.call('ZADD', q.clients, clients[i + 1], clients[i])
      redis.call('HSET', q.requests, clients[i], DESTROYED)
    end
  end
  return { 'gone', active, n }
end

return {
  configure = configure, destroy = destroy,
}
