-- The leases of one dequeue.

local BULK, LONG_ENTRY, MAX_CALL_BYTES = keys.BULK, keys.LONG_ENTRY, keys.MAX_CALL_BYTES
local hmget_sparse, presized = keys.hmget_sparse, keys.presized
local count = stats.count
local read_info, is_scheduled_info = job.read_info, job.is_scheduled_info
local is_surely_not_suspect, read_active = job.is_surely_not_suspect, job.read_active
local lease_name = client.lease_name
local add_broken, unreadable = records.add_broken, records.unreadable

-- How many payloads to read before their bytes are counted: SOME, or SOME_SMALL if the payloads so
-- far had fewer than SMALL bytes on average.
local SOME = 5
local SOME_SMALL = 25
local SMALL = 10000

-- The only scores that are not times.
local NOT_TIMES = { inf = true, ['-inf'] = true }

local ZEROS = '0000000000000000000000000000000000000000'

-- The last two digits of a token, as text.
local LOW = {}
for i = 0, 99 do
  LOW[i] = (i < 10 and '0' or '') .. i
end

-- Quarantines a waiting job that cannot be run.
local function quarantine(q, batch, id, data, info, message)
  add_broken(q, id, unreadable(message), data)
  if info then
    batch:del(q.info, id, info)
  end
  if data then
    batch:del_unread(q.data, id)
  end
  count(q, 'broken')
end

-- Whether the entry of `active` belongs to a lease.
local function has_lease(q, id, active)
  local token, _, client = read_active(active)
  return token and redis.call('ZSCORE', q.leases, lease_name(client, id)) and true or false
end

-- Quarantines the payload of a job that is both waiting and active, which only another program can
-- have caused. Its run goes on.
local function quarantine_copy(q, id, data)
  add_broken(q, id, unreadable('the job was waiting and active at once'), data)
  count(q, 'broken')
end

-- The next payloads after the first `n` jobs, which had `bytes` bytes in total, and the index of
-- the last one. Reads only some at a time, because payloads may be large.
local function next_payloads(q, ids, n, bytes)
  local some = n > 0 and bytes < (n + 1) * SMALL and SOME_SMALL or SOME
  local last = math.min(n + some, #ids)
  return redis.call('HMGET', q.data, unpack(ids, n + 1, last)), last
end

-- The digits that a hundred tokens have in common. Formatting each token by itself would take
-- longer than everything else about a job.
local function token_head(token)
  return token < 100 and '' or string.format('%.0f', math.floor(token / 100))
end

-- The same time with enough zeros to force its hash out of the listpack encoding (see LONG_ENTRY).
-- One such value is enough.
local function pad_time(run_at)
  if not run_at:find('^%d+%.?%d*$') then
    return run_at -- not written by this library: zeros might change its value
  end
  return run_at .. (run_at:find('.', 1, true) and '' or '.') .. ZEROS
end

-- Whether a due job can be leased. Quarantines a job that cannot be leased.
local function check_job(q, batch, id, data, info, active)
  if active and has_lease(q, id, active) then
    quarantine_copy(q, id, data)
    return false
  elseif not data then
    quarantine(q, batch, id, nil, info, 'the payload is missing')
    return false
  elseif not info or is_surely_not_suspect(info) then
    return true
  end
  if not read_info(info) then
    quarantine(q, batch, id, data, info, 'the record of this job cannot be read')
    return false
  end
  return true
end

-- Adds `n` leases to the batch. If `skip` is 2, the first two places in `leases` are for
-- LONG_ENTRY, which cannot be the name of a lease: it has no colon.
local function add_leases(q, batch, n, entries, olds, leases, skip)
  if n == 0 then
    return
  end
  batch:bulk('hset', q.active, entries, 2 * n, olds)
  if skip > 0 then
    leases[1], leases[2] = '0', LONG_ENTRY
    batch:rem(q.leases, LONG_ENTRY)
  end
  batch:bulk('zadd', q.leases, leases, skip + 2 * n)
end

-- Removes all entries after the first `n`: the table was made too large.
local function truncate(values, n)
  for i = #values, n + 1, -1 do
    values[i] = nil
  end
  return values
end

-- Adds the leases of due jobs to `batch`. Returns id, token, run_at, data and info of each leased
-- job, and how many due jobs were handled, leased or quarantined. Stops after MAX_CALL_BYTES.
local function lease_jobs(q, batch, client, ids, scores, infos)
  local most, active = #ids, hmget_sparse(q.active, ids)
  local jobs, entries, leases = presized(5 * most), presized(2 * most), presized(2 * most + 2)
  local lease_head, active_tail = lease_name(client, ''), ':' .. client
  local skip = most >= BULK and 2 or 0
  local n, done, number, head, olds = 0, 0, q.token, nil, nil
  local payloads, before, upto, bytes = nil, 0, 0, 0
  for i = 1, most do
    if i > upto then
      if bytes >= MAX_CALL_BYTES then
        break
      end
      before = upto
      payloads, upto = next_payloads(q, ids, before, bytes)
    end
    local id, run_at, data, info = ids[i], scores[i], payloads[i - before], infos[i]
    local fine = data and not active[i]
    if not fine or info and not is_scheduled_info(info) then
      fine = check_job(q, batch, id, data, info, active[i])
    end
    bytes = bytes + (data and #data or 0)
    if fine then
      number = number + 1
      local low = number % 100
      if low == 0 or not head then -- a function for this would cost 0.7 percent of a job life
        head = token_head(number)
      end
      local token = number < 10 and LOW[number]:sub(2) or head .. LOW[low]
      run_at = NOT_TIMES[run_at] and string.format('%.17g', q.now) or run_at
      entries[2 * n + 1] = id
      entries[2 * n + 2] = token .. ':' .. (n == 0 and pad_time(run_at) or run_at) .. active_tail
      leases[skip + 2 * n + 1], leases[skip + 2 * n + 2] = '0', lease_head .. id
      local at = 5 * n
      jobs[at + 1], jobs[at + 2], jobs[at + 3] = id, token, run_at
      jobs[at + 4], jobs[at + 5] = data, info or ''
      n = n + 1
      if active[i] then -- left by another program: nothing holds this job
        olds = olds or {}
        olds[n] = active[i]
      end
    end
    done = i
  end
  q.token = number
  add_leases(q, batch, n, entries, olds, leases, skip)
  return truncate(jobs, 5 * n), done
end

return {
  lease_jobs = lease_jobs, next_payloads = next_payloads,
}
