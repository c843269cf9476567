-- Calls that were carried out. A call that is sent again, because its reply was lost, gets the same
-- reply and is not carried out again: the job that it dispatched may have run and be gone by then.
--
-- A caller sends one call at a time and numbers its calls, so only its last call is stored. Caller
-- and number are the first two arguments of a call.
--
-- calls    caller -> 'number noted letters': its last call, when `callers` noted it, and one
--          letter for the status of each job.
-- callers  caller -> when it was noted: at its first call, then about every NOTE_EVERY_MS.

local refuse = keys.refuse
local new_batch = batch.new

local NOTE_EVERY_MS = 60000

-- A caller that was noted this long ago is gone: it waits for no reply, and no call of it is in
-- transit.
local CALLER_GONE_MS = 600000

local LETTERS = {
  created = 'c', updated = 'u', blocked = 'b', unchanged = 'n', -- dispatch
  cancelled = 'x', requested = 'r', active = 'a', absent = '-', -- cancel
  requeued = 'q', exists = 'e', later = 'l', -- requeue
  dequeued = 't',
}
local WORDS = {
  c = 'created', u = 'updated', b = 'blocked', n = 'unchanged',
  x = 'cancelled', r = 'requested', a = 'active', ['-'] = 'absent',
  q = 'requeued', e = 'exists', l = 'later', t = 'dequeued',
}

-- Number, time noted and letters of an entry of `calls`, and the time noted as text; nil if there
-- is no entry that can be read.
local function read_call(raw)
  local number, text, letters = tostring(raw):match('^(%d+) (%S+) ([cubnxra%-qelt]+)$')
  local noted = tonumber(text)
  if noted then
    return tonumber(number), noted, letters, text
  end
  return nil
end

-- The number and the letters of the last call of this caller; nil if it has made none.
local function last_call(q, call)
  call.old = redis.call('HGET', q.calls, call.caller)
  local number, noted, letters, text = read_call(call.old)
  call.noted, call.noted_text = noted, text
  return number, letters
end

-- Whether this call was carried out before, or its caller has sent another since.
local function is_late(q, call)
  local number = last_call(q, call)
  return number and number >= call.number
end

-- The statuses that this call, of `jobs` jobs, was answered with the first time; nil if it is new.
local function earlier_reply(q, call, jobs)
  local number, letters = last_call(q, call)
  if not number or number < call.number then
    return nil
  end
  -- Either the call was delayed and its caller has sent another since, so that this reply reaches
  -- no one, or the caller does not number its calls correctly.
  if number > call.number or #letters ~= jobs then
    refuse(string.format('expected a number higher than %.0f, that of the last call', number))
  end
  local replies = {}
  for i = 1, jobs do
    replies[i] = WORDS[letters:sub(i, i)]
  end
  -- Writes the same value again: without a write, a WAIT after this call would not wait for what
  -- the first call wrote, which may not have reached a replica or the disk.
  redis.call('HSET', q.calls, call.caller, call.old)
  return replies
end

-- Notes that a caller exists, and forgets up to 100 that are gone.
local function note_caller(q, batch, caller)
  local gone = redis.call('ZRANGE', q.callers, '-inf', q.now - CALLER_GONE_MS, 'BYSCORE',
    'LIMIT', 0, 100, 'WITHSCORES')
  for i = 1, #gone, 2 do
    if gone[i] ~= caller then
      batch:rem(q.callers, gone[i], gone[i + 1])
      batch:del(q.calls, gone[i], redis.call('HGET', q.calls, gone[i]))
    end
  end
  batch:add(q.callers, caller, q.now, redis.call('ZSCORE', q.callers, caller))
  return q.now
end

local function letters_of(replies)
  local letters = {}
  for i = 1, #replies do
    letters[i] = LETTERS[replies[i]]
  end
  return table.concat(letters)
end

-- Records a call and its reply; `call` is nil if it has no number.
local function record_call(q, batch, call, replies, all_created)
  if not call then
    return
  end
  local letters = all_created and string.rep('c', #replies) or letters_of(replies)
  local noted, text = call.noted, call.noted_text
  if not noted or math.abs(q.now - noted) > NOTE_EVERY_MS then
    text = string.format('%.17g', note_caller(q, batch, call.caller))
  end
  local entry = string.format('%.0f ', call.number) .. text .. ' ' .. letters
  batch:set(q.calls, call.caller, entry, call.old)
end

-- The reply of a dequeue, as `record_call` stores it.
local DEQUEUED = { 'dequeued' }

-- Records a dequeue that takes nothing.
local function note_dequeue(q, call)
  local batch = new_batch()
  record_call(q, batch, call, DEQUEUED)
  batch:commit(q)
end

return {
  DEQUEUED = DEQUEUED, note_dequeue = note_dequeue,
  read_call = read_call, is_late = is_late, earlier_reply = earlier_reply,
  record_call = record_call,
}
