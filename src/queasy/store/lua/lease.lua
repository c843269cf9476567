-- The leases of one dequeue.

local MANY, LONG, BYTES, any_of = keys.MANY, keys.LONG, keys.BYTES, keys.any_of
local room_for = keys.room_for
local count = stats.count
local read_info, is_scheduled = job.read_info, job.is_scheduled
local need_not_be_read, join, read_active = job.need_not_be_read, job.join, job.read_active
local lease_of = client.lease_of
local keep_failed = records.keep_failed

-- How many payloads are read at once, before their bytes are counted: few, and more when those
-- were small.
local SOME = 5
local SOME_SMALL = 25
local SMALL = 10000

-- The last two digits of a token, as text.
local LOW = {}
for i = 0, 99 do
  LOW[i] = (i < 10 and '0' or '') .. i
end

-- A waiting job that cannot be run: what is left of it is set aside.
local function quarantine(q, batch, id, data, info, message)
  local problem = { kind = 'broken', type = 'Unreadable', message = message }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
  if info then
    batch:del(q.info, id, info)
  end
  if data then
    batch:del_last(q.data, id)
  end
  count(q, 'broken')
end

-- Whether somebody holds this job, as `active` says.
local function is_held(q, id, active)
  local token, _, client = read_active(active)
  return token and redis.call('ZSCORE', q.leases, lease_of(client, id)) and true or false
end

-- A job that waits and is active, which it can only be by somebody's hand: its run goes on, and
-- what waits is set aside.
local function set_apart(q, id, data)
  local problem = { kind = 'broken', type = 'Unreadable', message = 'the job was waiting and active at once' }
  keep_failed(q, 'broken', id, join({ broken_at = q.now, error = problem }, data or ''))
  count(q, 'broken')
end

-- The payloads behind the first `n`, which had so many bytes: of some jobs only, as they may be large.
-- And up to which job.
local function next_payloads(q, ids, n, bytes)
  local some = n > 0 and bytes < (n + 1) * SMALL and SOME_SMALL or SOME
  local last = math.min(n + some, #ids)
  return redis.call('HMGET', q.data, unpack(ids, n + 1, last)), last
end

-- What hundred tokens have in common, as text: by itself each would take longer to format than
-- anything else about a job.
local function token_head(token)
  return token < 100 and '' or string.format('%.0f', math.floor(token / 100))
end

-- The same time with so many zeros that the server makes a table of the hash that it stands in (see
-- LONG). One such value will do.
local function long_form(run_at)
  if not run_at:find('^%d+%.?%d*$') then
    return run_at -- whatever somebody put there, zeros might change it
  end
  return run_at .. (run_at:find('.', 1, true) and '' or '.') .. '0000000000000000000000000000000000000000'
end

-- Whether a due job can be leased, and whether it is a suspect. What cannot be is set aside.
local function look_at(q, batch, id, data, info, active)
  if active and is_held(q, id, active) then
    set_apart(q, id, data)
    return false
  elseif not data then
    quarantine(q, batch, id, nil, info, 'the payload is missing')
    return false
  elseif not info or need_not_be_read(info) then
    return true
  end
  local record = read_info(info)
  if not record then
    quarantine(q, batch, id, data, info, 'the record of this job cannot be read')
    return false
  end
  return true, record.suspect
end

-- Puts `n` leases into the batch. With `skip` the first two places in `leases` are those of LONG, which
-- has no colon: no lease is named so.
local function add_leases(q, batch, n, entries, olds, leases, skip)
  if n == 0 then
    return
  end
  batch:all('hset', q.active, entries, 2 * n, olds)
  if skip > 0 then
    leases[1], leases[2] = '0', LONG
    batch:rem(q.leases, LONG)
  end
  batch:all('zadd', q.leases, leases, skip + 2 * n)
end

-- Puts leases into the batch, and returns what is told of those jobs: id, token, run_at, data, info of
-- each. And how many due jobs were handled: a suspect comes alone, so the batch ends before it, or is
-- that one job; and it ends when it has enough bytes.
local function lease_each(q, batch, client, ids, scores, infos)
  local most, active = #ids, any_of(q.active, ids)
  local jobs, entries, leases = room_for(5 * most), room_for(2 * most), room_for(2 * most + 2)
  local lease_head, active_tail = lease_of(client, ''), ':' .. client
  local skip = most >= MANY and 2 or 0
  local n, done, number, head, olds = 0, 0, q.token, nil, nil
  local payloads, before, upto, bytes = nil, 0, 0, 0
  for i = 1, most do
    if i > upto then
      if bytes >= BYTES then
        break
      end
      before = upto
      payloads, upto = next_payloads(q, ids, before, bytes)
    end
    local id, run_at, data, info = ids[i], scores[i], payloads[i - before], infos[i]
    local fine, suspect = data and not active[i], false
    if not fine or info and not is_scheduled(info) then
      fine, suspect = look_at(q, batch, id, data, info, active[i])
    end
    if suspect and n > 0 then
      break
    end
    bytes = bytes + (data and #data or 0)
    if fine then
      number = number + 1
      local low = number % 100
      if low == 0 or not head then
        head = token_head(number)
      end
      local token = number < 10 and LOW[number]:sub(2) or head .. LOW[low]
      if run_at == 'inf' or run_at == '-inf' then -- the server has no other scores that are no times
        run_at = string.format('%.17g', q.now)
      end
      entries[2 * n + 1] = id
      entries[2 * n + 2] = token .. ':' .. (n == 0 and long_form(run_at) or run_at) .. active_tail
      leases[skip + 2 * n + 1], leases[skip + 2 * n + 2] = '0', lease_head .. id
      local at = 5 * n
      jobs[at + 1], jobs[at + 2], jobs[at + 3], jobs[at + 4], jobs[at + 5] = id, token, run_at, data, info or ''
      n = n + 1
      if active[i] then -- somebody's, who holds nothing
        olds = olds or {}
        olds[n] = active[i]
      end
    end
    done = i
    if suspect then
      break
    end
  end
  q.token = number
  add_leases(q, batch, n, entries, olds, leases, skip)
  for i = #jobs, 5 * n + 1, -1 do
    jobs[i] = nil
  end
  return jobs, done
end

return {
  lease_each = lease_each,
}
