-- The records of one job.
--
-- info     whatever is not default: dispatched_at, the counts, options, the last error, how many
--          companions a suspect may have (a job that ran when a client died), and in a fail queue
--          the origin. A job without any of these has no record, and was dispatched at its run_at.
-- active   'token:run_at:client', followed by ':cancel' once a cancel was requested.
-- blocked  a held dispatch: its record, then the payload.
-- failed, broken  a record, then the payload.
--
-- src/queasy/store/records.py reads the same bytes; tests/store/test_layout.py compares the two.

local MAX_INTEGER, refuse, stored_number = keys.MAX_INTEGER, keys.refuse, keys.stored_number
local in_chunks, settings_of, schedule = keys.in_chunks, keys.settings_of, keys.schedule

-- A count limit of this size or more is no limit: clients write "unlimited" so. An older client
-- reads it as a number.
local UNLIMITED = 2 ^ 31

local DEFAULTS = {
  max_retries = 10, max_stalls = 3, max_timeouts = 3, max_expiries = UNLIMITED,
  min_backoff = 2000, max_backoff = 300000,
}
-- The options that a caller may set. Workers enforce `timeout`.
local OPTIONS = {
  max_retries = true, max_stalls = true, max_timeouts = true, max_expiries = true,
  min_backoff = true, max_backoff = true, timeout = true,
}
local COUNTS = { 'retry_count', 'stall_count', 'timeout_count', 'expiry_count' }

-- The table packed in `raw`; nil if it is not a packed table. Another program may have written
-- anything to the server, and one bad record must not stop a queue.
local function unpack_table(raw)
  local ok, value = pcall(cmsgpack.unpack, raw)
  if ok and type(value) == 'table' then
    return value
  end
  return nil
end

-- Whether a record may have this value as a time. NaN and infinities are not times.
local function is_time(value)
  return type(value) == 'number' and value > -math.huge and value < math.huge
end

local function is_amount(value)
  return is_time(value) and value >= 0
end

local function are_options(value)
  if type(value) ~= 'table' then
    return false
  end
  for name, amount in pairs(value) do
    if type(name) ~= 'string' or not is_amount(amount) then
      return false
    end
  end
  return true
end

-- Options from the arguments of a call. An option that this library does not know is refused: to
-- ignore it would break what the caller was promised.
local function check_options(value)
  if not are_options(value) then
    refuse('expected options as names with numbers, 0 or more')
  end
  for name in pairs(value) do
    if not OPTIONS[name] then
      refuse('unknown option: ' .. name)
    end
  end
  return value
end

-- The info in `raw` (false: there is none); nil if it cannot be read.
local function read_info(raw)
  if not raw then
    return {}
  end
  local info = unpack_table(raw)
  if not info then
    return nil
  end
  for _, name in ipairs(COUNTS) do
    if info[name] ~= nil and not is_amount(info[name]) then
      return nil
    end
  end
  if info.options ~= nil and not are_options(info.options) then
    return nil
  end
  if info.dispatched_at ~= nil and not is_time(info.dispatched_at) then
    return nil
  end
  if info.companions ~= nil and not is_amount(info.companions) then
    return nil
  end
  return info
end

-- The info of a job that was scheduled and has nothing else but the time of its dispatch: a map of
-- one finite double.
local DISPATCHED_AT = '\129\173dispatched_at'
local SCHEDULED = DISPATCHED_AT .. '\203'

local function is_scheduled_info(raw)
  if #raw ~= 24 or string.find(raw, SCHEDULED, 1, true) ~= 1 then
    return false
  end
  local high, low = string.byte(raw, 17, 18)
  return not (high % 128 == 127 and low >= 240)
end

-- The first bytes of two infos that settle.lua assembles: of a job in a fail queue that has nothing
-- but its origin, and (after one byte) of a job that was retried once.
local ORIGIN = '\129\166origin'
local RETRIED = '\171retry_count\001'

-- Whether a dequeue can lease the job without decoding its info, because it is not a suspect. If
-- the rest cannot be read, the client that leases the job finds out.
local function is_surely_not_suspect(raw)
  if is_scheduled_info(raw) or string.find(raw, ORIGIN, 1, true) == 1 then
    return true
  end
  return string.find(raw, RETRIED, 1, true) == 2 and not string.find(raw, 'companions', 1, true)
end

-- How many companions the job may have: other jobs in the same process while it runs. nil if it is
-- not a suspect. Decodes an info only if it contains the word: a queue may have many jobs with an
-- info.
local function companions_of(raw)
  if not raw or not string.find(raw, 'companions', 1, true) then
    return nil
  end
  local info = unpack_table(raw)
  local companions = info and info.companions
  return is_amount(companions) and companions or nil
end

-- The bytes of an info; nil if everything in it is default.
local function pack_info(info, score)
  if info.options and next(info.options) == nil then
    info.options = nil
  end
  for _, name in ipairs(COUNTS) do
    if info[name] == 0 then
      info[name] = nil
    end
  end
  if info.dispatched_at == score then
    info.dispatched_at = nil
  end
  if next(info) == nil then
    return nil
  end
  return cmsgpack.pack(info)
end

-- Adds the info of a job that waits (or is active) since `score` to the batch.
local function write_info(q, batch, id, info, score, old)
  local packed = pack_info(info, score)
  if packed then
    if packed ~= old then
      batch:set(q.info, id, packed, old)
    end
  elseif old then
    batch:del(q.info, id, old)
  end
end

-- A record followed by a payload.
local function join_payload(record, payload)
  return cmsgpack.pack(record) .. payload
end

-- The record and the payload in `raw`; nil if it cannot be read.
local function split_payload(raw)
  local ok, offset, record = pcall(cmsgpack.unpack_one, raw, 0)
  if not ok or type(record) ~= 'table' then
    return nil
  end
  if offset == -1 then
    return record, ''
  end
  return record, raw:sub(offset + 1)
end

-- The held dispatch in `raw`, and its payload; nil if it cannot be read.
local function read_held(raw)
  local held, payload = split_payload(raw)
  local fine = held and is_time(held.run_at) and is_time(held.accepted)
    and (held.low == nil or is_time(held.low)) and (held.high == nil or is_time(held.high))
    and (held.options == nil or are_options(held.options))
    and (held.update == nil or type(held.update) == 'table')
  if fine then
    return held, payload
  end
  return nil
end

-- Token, score, client and whether a cancel was requested, of an entry of `active`; nil if it
-- cannot be read.
local function read_active(raw)
  local token, score, client, cancelled = raw:match('^(%d+):([^:]+):([^:]+)(.*)$')
  local fine = token and stored_number(token, MAX_INTEGER) and is_time(tonumber(score))
  if fine and (cancelled == '' or cancelled == ':cancel') then
    return token, tonumber(score), client, cancelled ~= ''
  end
  return nil
end

-- The client of a plain lease: an entry of `active` with this token, without a requested cancel, of
-- a client that was not made for one lease. nil for any other entry: `read_active` reads those.
-- Most leases are plain and belong to `sender`, the client that sent the call (which was not made
-- for one lease). This check takes a fraction of the time of `read_active`.
local function plain_lease_client(active, token, sender)
  local found, client_at = string.match(active, '^(%d+):%d+%.?%d*:()')
  if found ~= token or #token > 16 then
    return nil
  end
  local client = string.sub(active, client_at)
  if client == sender or string.find(client, '^[^~:][^:]*$') then
    return client
  end
  return nil
end

-- The value in force: the job's own, else the queue's, else the default.
local function limit_of(q, info, name)
  local own = info.options and info.options[name]
  if own ~= nil then
    return own
  end
  local limits = settings_of(q).limits
  if limits and not q.limits_table then
    q.limits_table = unpack_table(limits) or {}
  end
  local of_queue = q.limits_table and q.limits_table[name]
  if is_amount(of_queue) then
    return of_queue
  end
  return DEFAULTS[name]
end

-- Whether a count has reached its limit, so that the job is given up. A retry counts before it
-- begins: a job is given up when it fails after `max_retries` retries. The others count when they
-- happen: it is given up at the last of `max_stalls` stalls, `max_timeouts` timeouts or
-- `max_expiries` expiries.
local function is_spent(q, info, name, n)
  local limit = limit_of(q, info, name)
  return n >= limit and limit < UNLIMITED
end

-- The limits of the queue, with the defaults: what is in force for a job without its own options.
local function limits_of_queue(q)
  if not q.limits_in_force then
    local found, none = {}, {}
    for name in pairs(OPTIONS) do
      found[name] = limit_of(q, none, name)
    end
    q.limits_in_force = found
  end
  return q.limits_in_force
end

local function backoff(q, info, attempts)
  local least, most = limit_of(q, info, 'min_backoff'), limit_of(q, info, 'max_backoff')
  return math.min(most, least * 2 ^ math.min(attempts, 60))
end

-- The flags of a dispatch are four characters: update the data (1, 0); update run_at (t always, f
-- never, l if later, e if earlier); reset the counts (1, 0); which ids it applies to (0 all, 1 only
-- absent ones, 2 only waiting ones).
local DEFAULT_FLAGS = '1t10'

-- One dispatch from the arguments: id, data and, if `width` is 5, when, flags, options.
local function read_dispatch(q, argv, at, width)
  local id, data, when, flags, options = argv[at], argv[at + 1], '', '', ''
  if width == 5 then
    when, flags, options = argv[at + 2], argv[at + 3], argv[at + 4]
  end
  if flags == '' then
    flags = DEFAULT_FLAGS
  end
  local update_data, run_at_mode, reset, only = flags:match('^([01])([tfle])([01])([012])$')
  if not update_data then
    refuse('expected flags like 1t10, got ' .. flags)
  end
  if #id == 0 then
    refuse('expected an id, got an empty one')
  end
  local d = {
    id = id, data = data, update_data = update_data == '1', mode = run_at_mode,
    reset = reset == '1', only_if_absent = only == '1', only_if_waiting = only == '2',
    set = nil, update = nil,
  }
  if options ~= '' then
    local given = unpack_table(options)
    if not given or type(given.set) ~= 'table' or type(given.update) ~= 'table' then
      refuse('expected options as a map of set and update')
    end
    for name in pairs(given) do
      if name ~= 'set' and name ~= 'update' then
        refuse('unknown field of options: ' .. tostring(name))
      end
    end
    d.set, d.update = check_options(given.set), {}
    for _, name in ipairs(given.update) do
      if not OPTIONS[name] then
        refuse('unknown option to update: ' .. tostring(name))
      end
      d.update[name] = true
    end
  end
  d.run_at, d.due = schedule(q, when)
  d.accepted = q.time
  return d
end

-- A dispatch changes run_at by a clamp: min(max(score, low), high). Two clamps in a row are one
-- clamp, so further dispatches merge into a held one exactly.
local function clamp_of(d)
  if d.mode == 't' then
    return d.run_at, d.run_at
  elseif d.mode == 'l' then
    return d.run_at, nil
  elseif d.mode == 'e' then
    return nil, d.run_at
  end
  return nil, nil
end

local function clamp(score, low, high)
  if low and score < low then
    score = low
  end
  if high and score > high then
    score = high
  end
  return score
end

-- The score after an update. A job that is due and would still be due keeps its place: dispatching
-- a busy id repeatedly must not push it back for ever.
local function move_run_at(q, score, low, high)
  local moved = clamp(score, low, high)
  if moved ~= score and moved <= q.time and score <= q.time then
    return score
  end
  return moved
end

-- Applies the options named in `update` to a table of options; true if anything changed. A name
-- that is not in `set` returns to the queue's value.
local function update_options(options, set, update)
  local changed = false
  for name in pairs(update) do
    if options[name] ~= set[name] then
      options[name] = set[name]
      changed = true
    end
  end
  return changed
end

local function reset_counts(info)
  local changed = false
  for _, name in ipairs(COUNTS) do
    if info[name] and info[name] ~= 0 then
      changed = true
    end
    info[name] = nil
  end
  if info.error or info.companions then
    info.error, info.companions = nil, nil
    changed = true
  end
  return changed
end

-- The record of a dispatch that is held while its id is active.
local function held_record(d)
  local low, high = clamp_of(d)
  local held = {
    accepted = d.accepted, run_at = d.run_at, low = low, high = high,
    update_data = d.update_data, reset = d.reset,
  }
  if d.set then
    held.options, held.update = d.set, d.update
  end
  return held
end

-- Merges a further dispatch into a held one; returns the payload to store.
local function merge_held(q, held, payload, d)
  held.run_at = move_run_at(q, held.run_at, clamp_of(d))
  local low, high = clamp_of(d)
  if held.low then
    held.low = clamp(held.low, low, high)
  else
    held.low = low
  end
  if held.high then
    held.high = clamp(held.high, low, high)
  else
    held.high = high
  end
  held.reset = held.reset or d.reset
  if d.set then
    held.options, held.update = held.options or {}, held.update or {}
    update_options(held.options, d.set, d.update)
    for name in pairs(d.update) do
      held.update[name] = true
    end
  end
  if d.update_data then
    held.update_data = true
    payload = d.data
  end
  return payload
end

-- Where each id is now. A call changes these records while it computes, so an id may occur twice.
local function load_waiting(q, ids)
  local active = in_chunks('HMGET', q.active, ids)
  local scores = in_chunks('ZMSCORE', q.waiting, ids)
  local jobs = {}
  for i, id in ipairs(ids) do
    if not jobs[id] then
      local score = tonumber(scores[i] or nil)
      jobs[id] = { active = active[i], score = score, old_score = score }
    end
  end
  return jobs
end

return {
  unpack_table = unpack_table, is_time = is_time, are_options = are_options,
  check_options = check_options, read_info = read_info,
  DISPATCHED_AT = DISPATCHED_AT, is_scheduled_info = is_scheduled_info, ORIGIN = ORIGIN,
  RETRIED = RETRIED, is_surely_not_suspect = is_surely_not_suspect,
  companions_of = companions_of, write_info = write_info,
  join_payload = join_payload, split_payload = split_payload, read_held = read_held,
  read_active = read_active, plain_lease_client = plain_lease_client, limit_of = limit_of,
  is_spent = is_spent, limits_of_queue = limits_of_queue,
  backoff = backoff, read_dispatch = read_dispatch, clamp_of = clamp_of, move_run_at = move_run_at,
  update_options = update_options, reset_counts = reset_counts, held_record = held_record,
  merge_held = merge_held, load_waiting = load_waiting,
}
