-- The invariants of a queue, checked in pages: ranks `offset` to `offset + limit` of the waiting
-- jobs, the leases, and so on. The client adds up the tallies of all pages and compares them with
-- the sizes: an entry of a hash that is on no page belongs to no job.

local NAMES, MAX_TIME, MAX_INTEGER, CLOCK = keys.NAMES, keys.MAX_TIME, keys.MAX_INTEGER, keys.CLOCK
local SETTINGS, stored_number = keys.SETTINGS, keys.stored_number
local unpack_table, are_options, read_info = job.unpack_table, job.are_options, job.read_info
local split_payload, read_held, read_active = job.split_payload, job.read_held, job.read_active
local read_call = idempotency.read_call
local read_record = waiters.read_record

local TYPES = {
  waiting = 'zset', data = 'hash', info = 'hash', active = 'hash', blocked = 'hash',
  meta = 'hash', stats = 'hash', waiters = 'zset', waiter_info = 'hash', leases = 'zset',
  clients = 'zset', requests = 'hash', cancels = 'zset', workers = 'hash', failed = 'hash',
  failed_at = 'zset', broken = 'hash', broken_at = 'zset', calls = 'hash', callers = 'zset',
}

local CHECKS = {}

function CHECKS.types(q, report)
  local fine = true
  for _, name in ipairs(NAMES) do
    local kind = q[name] and redis.call('TYPE', q[name]).ok or 'none'
    if TYPES[name] and kind ~= 'none' and kind ~= TYPES[name] then
      report('key ' .. name .. ' is a ' .. kind .. ', expected a ' .. TYPES[name])
      fine = false
    end
  end
  return fine
end

function CHECKS.waiting(q, offset, limit, report, tally)
  local found = redis.call('ZRANGE', q.waiting, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local id, score = found[i], tonumber(found[i + 1])
    local info = redis.call('HGET', q.info, id)
    tally.waiting = tally.waiting + 1
    if redis.call('HEXISTS', q.data, id) == 1 then
      tally.data = tally.data + 1
    else
      report('waiting job ' .. id .. ' has no payload')
    end
    if info then
      tally.info = tally.info + 1
      if not read_info(info) then
        report('the info of waiting job ' .. id .. ' cannot be read')
      end
    end
    if redis.call('HEXISTS', q.active, id) == 1 then
      report('job ' .. id .. ' is waiting and active')
    end
    if redis.call('HEXISTS', q.blocked, id) == 1 then
      report('a dispatch is held for job ' .. id .. ', which is not active')
    end
    if not (score > 0 and score < math.huge) then
      report('the run_at of job ' .. id .. ' is not a positive time')
    end
  end
end

function CHECKS.active(q, offset, limit, report, tally)
  local found = redis.call('ZRANGE', q.leases, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local lease = found[i]
    local holder, id = lease:match('^([^:]*):(.*)$')
    local active = redis.call('HGET', q.active, id or '')
    local asked = redis.call('ZSCORE', q.cancels, lease) ~= false
    tally.leases = tally.leases + 1
    tally.cancels = tally.cancels + (asked and 1 or 0)
    if tonumber(found[i + 1]) ~= 0 then
      report('lease ' .. lease .. ' has a score other than 0 and will not be found')
    end
    if not active then
      report('lease ' .. lease .. ' belongs to a job that is not active')
    else
      tally.active = tally.active + 1
      local token, _, client, cancelled = read_active(active)
      if not token then
        report('the lease of job ' .. id .. ' cannot be read')
      elseif client ~= holder then
        report('job ' .. id .. ' is active for ' .. client .. ' but leased to ' .. holder)
      end
      if not redis.call('ZSCORE', q.clients, holder) then
        report('job ' .. id .. ' is leased to ' .. holder .. ', which is not a client')
      end
      if asked ~= (cancelled or false) then
        report('the cancel request of job ' .. id .. ' is not in both active and cancels')
      end
      if token and tonumber(token) > q.token then
        report('job ' .. id .. ' has a token that was never issued')
      end
    end
    local info = redis.call('HGET', q.info, id or '')
    tally.data = tally.data + redis.call('HEXISTS', q.data, id or '')
    tally.info = tally.info + (info and 1 or 0)
    local held = redis.call('HGET', q.blocked, id or '')
    tally.blocked = tally.blocked + (held and 1 or 0)
    if held and not read_held(held) then
      report('the dispatch held for job ' .. id .. ' cannot be read')
    end
    if redis.call('HEXISTS', q.data, id or '') == 0 then
      report('active job ' .. tostring(id) .. ' has no payload')
    end
    if info and not read_info(info) then
      report('the info of active job ' .. id .. ' cannot be read')
    end
  end
end

function CHECKS.records(q, kind, offset, limit, report, tally)
  for _, id in ipairs(redis.call('ZRANGE', q[kind .. '_at'], offset, offset + limit - 1)) do
    tally[kind] = tally[kind] + 1
    local raw = redis.call('HGET', q[kind], id)
    if not raw then
      report('job ' .. id .. ' is in ' .. kind .. '_at but has no record')
    elseif not split_payload(raw) then
      report('the ' .. kind .. ' record of job ' .. id .. ' cannot be read')
    end
  end
end

-- Every entry of requests and workers belongs to a client that exists.
function CHECKS.clients(q, offset, limit, report, tally)
  local found = redis.call('ZRANGE', q.clients, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local client = found[i]
    if tonumber(found[i + 1]) > MAX_TIME then
      report('the lease of client ' .. client .. ' never expires')
    end
    tally.clients = tally.clients + 1
    tally.requests = tally.requests + redis.call('HEXISTS', q.requests, client)
    tally.workers = tally.workers + redis.call('HEXISTS', q.workers, client)
  end
end

-- The entry of a waiter is a time, and every record belongs to a waiter.
function CHECKS.waiters(q, offset, limit, report, tally)
  local found = redis.call('ZRANGE', q.waiters, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local record = redis.call('HGET', q.waiter_info, found[i])
    tally.waiters = tally.waiters + 1
    tally.waiter_info = tally.waiter_info + (record and 1 or 0)
    if tonumber(found[i + 1]) % 1 ~= 0 then
      report('the time of waiter ' .. found[i] .. ' is not in whole milliseconds')
    end
    if record and not read_record(record) then
      report('the record of waiter ' .. found[i] .. ' cannot be read')
    end
  end
end

-- The last call of every noted caller is stored, and no other.
function CHECKS.calls(q, offset, limit, report, tally)
  local callers = redis.call('ZRANGE', q.callers, offset, offset + limit - 1, 'WITHSCORES')
  for i = 1, #callers, 2 do
    local _, noted = read_call(redis.call('HGET', q.calls, callers[i]))
    tally.calls = tally.calls + 1
    if noted ~= tonumber(callers[i + 1]) then
      report('the last call of caller ' .. callers[i] .. ' cannot be read or has another time')
    end
  end
end

local TALLIES = {
  'waiting', 'data', 'info', 'leases', 'active', 'blocked', 'failed', 'broken', 'clients',
  'requests', 'workers', 'cancels', 'calls', 'waiters', 'waiter_info',
}

local IS_TIME = { time = true, gap_from = true, grace_until = true, heard = true, back_at = true }

-- The settings and the clock. A value that cannot be read counts as not set.
function CHECKS.meta(q, report)
  local names = { 'back_at', unpack(CLOCK) }
  for _, name in ipairs(SETTINGS) do
    names[#names + 1] = name
  end
  for _, name in ipairs(names) do
    local raw = redis.call('HGET', q.meta, name)
    local fine
    if name == 'limits' then
      fine = not raw or are_options(unpack_table(raw))
    else
      fine = not raw or stored_number(raw, IS_TIME[name] and MAX_TIME or MAX_INTEGER)
    end
    if not fine then
      report('the setting ' .. name .. ' in meta cannot be read')
    end
  end
end

local function size(q, name)
  return redis.call(TYPES[name] == 'zset' and 'ZCARD' or 'HLEN', q[name])
end

-- Replies problems, tallies of this page and sizes, both in the order of TALLIES.
local function audit(q, offset, limit)
  local problems, tally = {}, {}
  local function report(text)
    problems[#problems + 1] = text
  end
  for _, name in ipairs(TALLIES) do
    tally[name] = 0
  end
  if not CHECKS.types(q, report) then
    return { problems, {}, {} }
  end
  CHECKS.waiting(q, offset, limit, report, tally)
  CHECKS.active(q, offset, limit, report, tally)
  CHECKS.records(q, 'failed', offset, limit, report, tally)
  CHECKS.records(q, 'broken', offset, limit, report, tally)
  CHECKS.clients(q, offset, limit, report, tally)
  CHECKS.calls(q, offset, limit, report, tally)
  CHECKS.waiters(q, offset, limit, report, tally)
  if offset == 0 then
    CHECKS.meta(q, report)
  end
  local tallies, sizes = {}, {}
  for i, name in ipairs(TALLIES) do
    tallies[i], sizes[i] = tally[name], size(q, name)
  end
  return { problems, tallies, sizes }
end

-- The reply of an audit if `meta` cannot be opened; nil if it can.
local function meta_problem(keys)
  local kind = redis.call('TYPE', keys[6]).ok
  if kind ~= 'none' and kind ~= 'hash' then
    return { { 'key meta is a ' .. kind .. ', expected a hash' }, {}, {} }
  end
  return nil
end

return {
  TYPES = TYPES, audit = audit, meta_problem = meta_problem,
}
