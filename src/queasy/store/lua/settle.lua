-- Ending many leases in one call.

-- Checks the endings in argv: `n` of five arguments each. Their ids, and the errors they tell of.
local function read_endings(argv, first, n)
  local ids, problems = {}, {}
  for i = 1, n do
    local at = first + (i - 1) * 5
    if not ENDINGS[argv[at]] or OF_THE_DEAD[argv[at]] then
      refuse('unknown way to end a lease: ' .. tostring(argv[at]))
    end
    ids[i] = argv[at + 1]
    if argv[at + 4] ~= '' then
      problems[i] = unpack_table(argv[at + 4]) or refuse('expected an error as a map')
    end
    if argv[at + 3] ~= '' then
      number((argv[at + 3]:gsub('^%+', '')), 'the time of a retry')
    end
  end
  return ids, problems
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

-- Most endings are a finish of what nobody asked anything else of. Of `n` of them: the ids, their
-- entries in `active`, their leases, and the ids and infos of `m` that have one. It is the same as
-- `remove` without a run.
local function remove_plain(q, batch, n, ids, active, leases, m, with_info, infos)
  batch:all('hdel', q.active, ids, n, active)
  batch:all('zrem', q.leases, leases, n, nil, '0')
  batch:all_last(q.data, ids, n)
  if m > 0 then
    batch:all('hdel', q.info, with_info, m, infos)
  end
  count(q, 'finished', n)
end

-- Ends leases: from argv[first] verb, id, token, when, problem of each, `n` of them; and those in
-- `finishes`, which are finished: id, token of each. Most are of the client that `asks`. What became of
-- the first, and which of the others, by number, had no lease any more.
local function settle(q, argv, first, n, finishes, asks)
  local all = n + #finishes / 2
  if all == 0 then
    return {}, {}
  end
  local ids, problems = read_endings(argv, first, n)
  add_finishes(ids, n, finishes)
  local active = many('HMGET', q.active, ids)
  local infos, helds = any_of(q.info, ids), any_of(q.blocked, ids)
  local batch, replies, lost, ended, any = Batch.new(), {}, {}, {}, false
  local finished, leases, infos_gone, with_info, old_infos = 0, room_for(all), 0, nil, nil
  local lease_head = asks and asks .. ':'
  for i = 1, all do
    local at = first + (i - 1) * 5
    local id, raw, info, became = ids[i], active[i], infos[i], 'lost'
    local verb, token = 'finish', finishes[2 * (i - n)]
    if i <= n then
      verb, token = argv[at], argv[at + 2]
    end
    local plain = raw and verb == 'finish' and not helds[i] and plain_holder(raw, token, asks)
    local run = raw and not ended[id] and not plain and read_run(id, raw, info, helds[i])
    if plain and not ended[id] then
      ended[id], finished = true, finished + 1
      ids[finished], active[finished] = id, raw -- those before were looked at
      leases[finished] = (plain == asks and lease_head or plain .. ':') .. id
      if info then -- whatever it says
        infos_gone, with_info, old_infos = infos_gone + 1, with_info or {}, old_infos or {}
        with_info[infos_gone], old_infos[infos_gone] = id, info
      end
      became = 'finished'
    elseif run and run.token == token then
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
    remove_plain(q, batch, finished, ids, active, leases, infos_gone, with_info, old_infos)
  end
  if any or finished > 0 then
    commit_runs(q, batch)
  end
  return replies, lost
end
