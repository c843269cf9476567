-- Calls that were carried out: one that is sent again, because its answer was lost, is answered
-- again and not carried out again. The job that it put may have run, and be gone, by then.
--
-- A caller sends one call at a time and numbers them, so its last one is all there is to keep.
-- Whoever gives the keys calls and callers behind the others, gives caller and number behind the
-- other arguments.
--
-- calls    caller -> 'number noted letters': its last call, when it was noted in `callers`, and a
--          letter for what became of each job.
-- callers  caller -> when it was noted: at its first call, then once in a while that it calls.

local refuse = keys.refuse

local NOTE_MS = 60000

-- Who was noted this long ago is gone: nobody waits for an answer, nothing is still on its way.
local CALLER_GONE_MS = 600000

local LETTERS = {
  created = 'c', updated = 'u', blocked = 'b', unchanged = 'n', -- dispatch
  cancelled = 'x', requested = 'r', active = 'a', absent = '-', -- cancel
  requeued = 'q', exists = 'e', later = 'l', -- requeue
}
local WORDS = {
  c = 'created', u = 'updated', b = 'blocked', n = 'unchanged',
  x = 'cancelled', r = 'requested', a = 'active', ['-'] = 'absent',
  q = 'requeued', e = 'exists', l = 'later',
}

-- number, noted, letters of an entry of `calls`, and noted as it is there; nil when there is none
-- that can be read.
local function read_call(raw)
  local number, text, letters = tostring(raw):match('^(%d+) (%S+) ([cubnxra%-qel]+)$')
  local noted = tonumber(text)
  if noted then
    return tonumber(number), noted, letters, text
  end
  return nil
end

-- What a call of so many jobs was answered when it first came; nil when this is the first time.
local function answered(q, call, jobs)
  call.old = redis.call('HGET', q.calls, call.caller)
  local number, noted, letters, text = read_call(call.old)
  call.noted, call.noted_text = noted, text
  if not number or number < call.number then
    return nil
  end
  -- A call that was on its way while its caller gave it up and went on: nobody hears this. Or a
  -- caller that does not count its calls, who must.
  if number > call.number or #letters ~= jobs then
    refuse(string.format('expected a number higher than %.0f, that of the last call of this caller', number))
  end
  local replies = {}
  for i = 1, jobs do
    replies[i] = WORDS[letters:sub(i, i)]
  end
  -- The same as before, but written: or a WAIT behind this call would have nothing to wait for,
  -- though what the first one wrote may not have reached a replica, or the disk.
  redis.call('HSET', q.calls, call.caller, call.old)
  return replies
end

-- Notes that a caller is there, in place of some who are gone.
local function note(q, batch, caller)
  local gone = redis.call('ZRANGE', q.callers, '-inf', q.now - CALLER_GONE_MS, 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
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

-- A `call` (nil when it has no number) is known from now on.
local function keep_call(q, batch, call, replies, all_created)
  if not call then
    return
  end
  local letters = all_created and string.rep('c', #replies) or letters_of(replies)
  local noted, text = call.noted, call.noted_text
  if not noted or math.abs(q.now - noted) > NOTE_MS then
    text = string.format('%.17g', note(q, batch, call.caller))
  end
  local kept = string.format('%.0f ', call.number) .. text .. ' ' .. letters
  batch:set(q.calls, call.caller, kept, call.old)
end

return {
  read_call = read_call, answered = answered, keep_call = keep_call,
}
