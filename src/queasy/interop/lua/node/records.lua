-- The keys, the numbers and the flags of one queue.
--
-- Other programs write to the same keys, with this library or with that of Queasy for Node. So a
-- record may lack fields, hold text where a number should be, or be of another type.

-- A negative score keeps a blocked job from being dequeued: -run_at. But -0 equals 0, so a blocked
-- job with run_at 0 would be due while its id is active. It gets this score, which is negative. A
-- library that flips the sign makes the job due half a millisecond after the beginning of 1970: at
-- once, which is what 0 means.
local BLOCKED_AT_ZERO = -0.5

-- What a blocked job remembers of the dispatch that it holds.
local FLAGS = { 'update_data', 'update_run_at', 'reset_counts' }
local RUN_AT_FLAGS = {
  ['true'] = 'true', ['false'] = 'false',
  ifLater = 'ifLater', if_later = 'ifLater',
  ifEarlier = 'ifEarlier', if_earlier = 'ifEarlier',
}

local MAX_COUNT = 2 ^ 53 - 1

local function refuse(message)
  error({ err = 'QUEASYBAD ' .. message })
end

local function open(key)
  if not key then
    refuse('expected the key of a queue, such as {emails}')
  end
  return { key = key, expiry = key .. ':expiry' }
end

local function waiting_job(q, id)
  return q.key .. ':waiting_job:' .. id
end

local function active_job(q, id)
  return q.key .. ':active_job:' .. id
end

local function checkouts(q, client)
  return q.key .. ':checkouts:' .. client
end

-- Whether there is a key of this type. A key of another type is renamed to <queue>:broken:<rest of
-- its name>, where it blocks no job and can be read: otherwise it would fail every call
-- that comes across it, such as every sweep.
local function has(q, key, expected)
  local found = redis.call('TYPE', key).ok
  if found ~= expected and found ~= 'none' then
    redis.call('RENAME', key, q.key .. ':broken:' .. key:sub(#q.key + 2))
  end
  return found == expected
end

-- Raises an error if a cluster is moving a record of this job to another node. Functions call this
-- before they change the job: the protocol does not declare these keys, so the server notices only
-- when a function comes to them, and that must not be half way.
local function reach(q, id)
  redis.call('EXISTS', waiting_job(q, id))
  redis.call('EXISTS', active_job(q, id))
end

-- The score of a waiting job, or nil.
local function score_of(q, id)
  local score = redis.call('ZSCORE', q.key, id)
  return score and score.double
end

local function run_at_of(score)
  if score >= 0 then
    return score + 0 -- and never -0
  end
  return score < BLOCKED_AT_ZERO and -score or 0
end

local function set_run_at(q, id, run_at, blocked)
  local score = blocked and math.min(-run_at, BLOCKED_AT_ZERO) or run_at
  redis.call('ZADD', q.key, score, id)
end

-- Text from a caller: an id or a client.
local function text_arg(text, what)
  return text or refuse('expected ' .. what)
end

-- A number from a caller. A negative time would be the score of a blocked job.
local function number_arg(text, what)
  local n = tonumber(text)
  if not n or n ~= n or n == math.huge or n == -math.huge then
    refuse('expected a number for ' .. what .. ', got ' .. tostring(text))
  end
  return math.max(n, 0)
end

-- A flag that is absent has its default. By the convention of the protocol only 'true' is true.
local function flag_arg(text, default)
  if text == nil or text == '' then
    return default
  end
  return tostring(text == 'true')
end

-- The flags of a dispatch, from its arguments or from the record of a blocked job.
local function flags_of(update_data, update_run_at, reset_counts)
  local data = flag_arg(update_data, 'true')
  local run_at = update_run_at
  if run_at == nil or run_at == '' then
    run_at = 'true'
  end
  return {
    update_data = data,
    update_run_at = RUN_AT_FLAGS[run_at]
      or refuse('expected true, false, ifLater or ifEarlier for update_run_at, got ' .. run_at),
    reset_counts = flag_arg(reset_counts, data),
  }
end

-- The flags of two dispatches that a blocked job holds, one after the other.
local function merged(first, second)
  local keeps_first = first.update_run_at == 'true' or second.update_run_at == 'false'
  return {
    update_data = second.update_data == 'true' and 'true' or first.update_data,
    update_run_at = keeps_first and first.update_run_at or second.update_run_at,
    reset_counts = second.reset_counts == 'true' and 'true' or first.reset_counts,
  }
end

-- A stored count; 0 if it is not one.
local function count_of(text)
  local n = tonumber(text)
  return n and n >= 0 and n < MAX_COUNT and math.floor(n) or 0
end

-- Adds 1 to a count of a record.
local function increment(key, field)
  local count = count_of(redis.call('HGET', key, field)) + 1
  redis.call('HSET', key, field, string.format('%.0f', count))
end

return {
  FLAGS = FLAGS,
  RUN_AT_FLAGS = RUN_AT_FLAGS,
  refuse = refuse,
  open = open,
  waiting_job = waiting_job,
  active_job = active_job,
  checkouts = checkouts,
  has = has,
  reach = reach,
  score_of = score_of,
  run_at_of = run_at_of,
  set_run_at = set_run_at,
  text_arg = text_arg,
  number_arg = number_arg,
  flags_of = flags_of,
  merged = merged,
  increment = increment,
}
