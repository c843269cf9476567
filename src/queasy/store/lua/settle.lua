-- Ending many leases in one call.

local MANY, LONG, refuse, number, many = keys.MANY, keys.LONG, keys.refuse, keys.number, keys.many
local any_of, room_for, settings_of = keys.any_of, keys.room_for, keys.settings_of
local fail_queue_of, tick, schedule = keys.fail_queue_of, keys.tick, keys.schedule
local count = stats.count
local make_tables, new_batch = batch.make_tables, batch.new
local ORIGIN, RETRIED, plain_holder = job.ORIGIN, job.RETRIED, job.plain_holder
local limit_of, backoff = job.limit_of, job.backoff
local made_due = waking.made_due
local keep_failed = records.keep_failed
local read_run, free_fail_id, ENDINGS = endings.read_run, endings.free_fail_id, endings.ENDINGS
local OF_THE_DEAD, end_run, commit_runs = endings.OF_THE_DEAD, endings.end_run, endings.commit_runs

-- The table packed in `raw`, and whether it is a map of a few fields with nothing behind it, and so may
-- stand in another record as it is.
local function read_problem(raw)
  local ok, rest, problem = pcall(cmsgpack.unpack_one, raw, 0)
  if not ok or type(problem) ~= 'table' then
    refuse('expected an error as a map')
  end
  local first = raw:byte(1)
  return problem, rest == -1 and first >= 128 and first <= 143
end

-- Checks the endings in argv: `n` of five arguments each. Their ids, the errors they tell of, and those
-- of these that may be kept as they came.
local function read_endings(argv, first, n)
  local ids, problems, packed = {}, {}, {}
  for i = 1, n do
    local at = first + (i - 1) * 5
    if not ENDINGS[argv[at]] or OF_THE_DEAD[argv[at]] then
      refuse('unknown way to end a lease: ' .. tostring(argv[at]))
    end
    ids[i] = argv[at + 1]
    packed[i] = argv[at + 4]
    if packed[i] ~= '' then
      local problem, is_plain = read_problem(packed[i])
      problems[i], packed[i] = problem, is_plain and packed[i]
    end
    if argv[at + 3] ~= '' then
      number((argv[at + 3]:gsub('^%+', '')), 'the time of a retry')
    end
  end
  return ids, problems, packed
end

-- The ids of all leases to end: those in `ids`, then those in `finishes`.
local function add_finishes(ids, n, finishes)
  for i = 1, #finishes / 2 do
    local id = finishes[2 * i - 1]
    if type(id) ~= 'string' or type(finishes[2 * i]) ~= 'string' then
      refuse('expected leases to finish as text')
    end
    ids[n + i] = id
  end
end

-- The infos of a few; of many those of the first `n`, if there are any: who finishes a job does not need it.
local function read_infos(q, argv, first, n, ids)
  if #ids <= 3 then -- as who only puts jobs takes one back: he may not ask how many there are
    local infos = many('HMGET', q.info, ids)
    q.has_infos = infos[1] or infos[2] or infos[3]
    return infos
  end
  q.has_infos = redis.call('HLEN', q.info) > 0
  for i = 1, q.has_infos and n or 0 do
    if argv[first + (i - 1) * 5] ~= 'finish' then
      return many('HMGET', q.info, { unpack(ids, 1, n) })
    end
  end
  return {}
end

-- The info of a job; `read` if it was, and then it is false for none.
local function info_of(q, id, read)
  if read == nil and q.has_infos then
    return redis.call('HGET', q.info, id)
  end
  return read
end

-- Leases that are plain (see `plain_holder`), with nothing held behind them: to be ended all at once.
local function add_plain(plain, id, active, lease)
  plain = plain or { n = 0, ids = {}, active = {}, leases = {} }
  local n = plain.n + 1
  plain.n, plain.ids[n], plain.active[n], plain.leases[n] = n, id, active, lease
  return plain
end

local function end_leases(q, batch, plain)
  batch:all('hdel', q.active, plain.ids, plain.n, plain.active)
  batch:all('zrem', q.leases, plain.leases, plain.n, nil, '0')
end

-- Most endings are a finish of what nobody asked anything else of, whatever its info says, if it has
-- one. It is the same as `remove` without a run.
local function finish_plain(q, batch, plain)
  end_leases(q, batch, plain)
  if q.has_infos then
    batch:all_last(q.info, plain.ids, plain.n)
  end
  batch:all_last(q.data, plain.ids, plain.n)
  count(q, 'finished', plain.n)
end

-- A record of so many fields: the packed `fields`, and the error, if there is one.
local function with_problem(n, fields, problem, rest)
  if problem == '' then
    return string.char(128 + n) .. fields .. rest
  end
  return string.char(129 + n) .. fields .. '\165error' .. problem .. rest
end

-- The fail queue's jobs for those given up; `fields` are what both records have in common.
local function fail_plain(fq, batch, ids, tokens, datas, fields, problems)
  local n, fail_ids = #ids, {}
  for i = 1, n do
    fail_ids[i] = ids[i] .. ':' .. tokens[i]
  end
  fail_ids[n + 1] = LONG -- it may be somebody's
  local taken = any_of(fq.data, fail_ids)
  if n >= MANY and not taken[n + 1] then
    make_tables(fq, batch, #(datas[1] or '') <= 64, false)
  end
  local values, times, infos = room_for(2 * n), room_for(2 * n), room_for(2 * n)
  for i = 1, n do
    local fail_id = taken[i] and free_fail_id(fq, fail_ids[i]) or fail_ids[i]
    values[2 * i - 1], values[2 * i] = fail_id, datas[i] or ''
    times[2 * i - 1], times[2 * i] = tick(fq), fail_id
    local name = '\162id' .. cmsgpack.pack(ids[i])
    infos[2 * i - 1], infos[2 * i] = fail_id, ORIGIN .. with_problem(4, fields[i], problems[i], name)
  end
  batch:all('hset', fq.data, values, 2 * n)
  batch:all('zadd', fq.waiting, times, 2 * n)
  batch:all('hset', fq.info, infos, 2 * n)
  count(fq, 'dispatched', n)
  fq.due = (fq.due or 0) + n
end

-- Jobs that are given up at their first run: none has an info, and each of the `problems` is packed, or
-- ''. It is the same as `give_up` without a run: most of a record is put together once, for both queues.
local function give_up_plain(q, batch, plain, problems)
  local n, ids = plain.n, plain.ids
  local datas = many('HMGET', q.data, ids)
  end_leases(q, batch, plain)
  batch:all('hdel', q.data, ids, n, datas)
  local head, fields, tokens = '\169failed_at' .. cmsgpack.pack(q.now) .. '\165token', {}, {}
  for i = 1, n do
    local token, score = string.match(plain.active[i], '^(%d+):([^:]+):')
    fields[i] = head .. cmsgpack.pack(token) .. '\173dispatched_at' .. cmsgpack.pack(tonumber(score))
    tokens[i] = token
    keep_failed(q, 'failed', ids[i], with_problem(3, fields[i], problems[i], datas[i] or ''))
  end
  local fq = settings_of(q).fail_handler and fail_queue_of(q)
  if fq then
    fail_plain(fq, batch, ids, tokens, datas, fields, problems)
  end
  count(q, 'failed', n)
end

-- The first retry of a job: its place among the `times`, and its info. It is the same as `try_again`
-- without a run; `retry_plain` writes it.
local function note_retry(q, plain, when, problem)
  local n, none = plain.n, {}
  if when == '' then
    when = string.format('+%.17g', backoff(q, none, 0))
  end
  local score = schedule(q, when)
  local _, run_at = string.match(plain.active[n], '^(%d+):([^:]+):')
  local dispatched_at = '\173dispatched_at' .. cmsgpack.pack(tonumber(run_at))
  plain.times, plain.infos = plain.times or {}, plain.infos or {}
  plain.times[2 * n - 1], plain.times[2 * n] = score, plain.ids[n]
  plain.infos[2 * n - 1] = plain.ids[n]
  plain.infos[2 * n] = with_problem(2, RETRIED, problem, dispatched_at)
  made_due(q, score)
end

local function retry_plain(q, batch, plain)
  end_leases(q, batch, plain)
  batch:all('zadd', q.waiting, plain.times, 2 * plain.n)
  batch:all('hset', q.info, plain.infos, 2 * plain.n)
  count(q, 'retried', plain.n)
end

-- Whether it is an ending of which there is a short way, where the lease is plain.
local function has_short_way(q, verb, info, problem)
  if verb == 'finish' then
    return true
  elseif info or not problem then
    return false
  end
  return verb == 'fail' or verb == 'retry' and limit_of(q, {}, 'max_retries') > 0
end

-- Ends leases: from argv[first] verb, id, token, when, problem of each, `n` of them; and those in
-- `finishes`, which are finished: id, token of each. Most are of the client that `asks`. What became of
-- the first, and which of the others, by number, had no lease any more.
local function settle(q, argv, first, n, finishes, asks)
  local all = n + #finishes / 2
  if all == 0 then
    return {}, {}
  end
  local ids, problems, packed = read_endings(argv, first, n)
  add_finishes(ids, n, finishes)
  local active, helds = many('HMGET', q.active, ids), any_of(q.blocked, ids)
  local infos = read_infos(q, argv, first, n, ids)
  local batch, replies, lost, ended, any = new_batch(), {}, {}, {}, false
  local finished, leases = 0, room_for(all)
  local doomed, why, again = nil, {}, nil
  local lease_head = asks and asks .. ':'
  for i = 1, all do
    local at = first + (i - 1) * 5
    local id, raw, info, became = ids[i], active[i], infos[i], 'lost'
    local verb, token = 'finish', finishes[2 * (i - n)]
    if i <= n then
      verb, token = argv[at], argv[at + 2]
    end
    local is_short = raw and not helds[i] and has_short_way(q, verb, info, packed[i])
    local holder = is_short and plain_holder(raw, token, asks)
    local run = raw and not ended[id] and not holder and read_run(id, raw, info_of(q, id, info), helds[i])
    if holder and not ended[id] then
      local lease = (holder == asks and lease_head or holder .. ':') .. id
      ended[id], any = true, true
      if verb == 'finish' then
        finished, became = finished + 1, 'finished'
        ids[finished], active[finished], leases[finished] = id, raw, lease -- those before were looked at
      elseif verb == 'fail' then
        doomed, became = add_plain(doomed, id, raw, lease), 'failed'
        why[doomed.n] = packed[i]
      else
        again, became = add_plain(again, id, raw, lease), 'retried'
        note_retry(q, again, argv[at + 3], packed[i])
      end
    elseif run and run.token == token then
      if doomed then -- in the order in which they are told
        give_up_plain(q, batch, doomed, why)
        doomed, why = nil, {}
      end
      became = end_run(q, batch, run, verb, argv[at + 3], problems[i])
      ended[id], any = true, true
    end
    if i <= n then
      replies[i] = became
    elseif became == 'lost' then
      lost[#lost + 1] = i - n
    end
  end
  if finished > 0 then
    local plain = { n = finished, ids = ids, active = active, leases = leases }
    finish_plain(q, batch, plain)
  end
  if doomed then
    give_up_plain(q, batch, doomed, why)
  end
  if again then
    retry_plain(q, batch, again)
  end
  if any then
    commit_runs(q, batch)
  end
  return replies, lost
end

return {
  settle = settle,
}
