-- The writes of one call. They are collected while it computes and applied at its end, so
-- nothing is written before everything was read and checked. Redis has no rollback: should
-- a write fail all the same, `commit` takes back those before it.

local Batch = {}
Batch.__index = Batch

-- What a write, or taking it back, may need. Checked before the first write, because an
-- ACL that denies one of them would otherwise stop us half way.
local WRITES = { 'HSET', 'HDEL', 'ZADD', 'ZREM' }

function Batch.new()
  return setmetatable({
    hset = {}, zadd = {}, zrem = {}, hdel = {}, last = {},
    keys = {}, -- in order of first use: `pairs` has none
  }, Batch)
end

local function list(batch, kind, key)
  local found = batch[kind][key]
  if not found then
    found = { n = 0, old = {} }
    batch[kind][key] = found
    batch.keys[#batch.keys + 1] = { kind, key }
  end
  return found
end

-- HSET field to value; `old` is what it held, nil for nothing.
function Batch:set(key, field, value, old)
  local l = self.hset[key] or list(self, 'hset', key)
  local n = l.n
  l[n + 1], l[n + 2] = field, value
  l.n = n + 2
  l.old[field] = old or nil
end

-- ZADD member at score; `old` is its score before, nil for none.
function Batch:add(key, member, score, old)
  local l = self.zadd[key] or list(self, 'zadd', key)
  local n = l.n
  l[n + 1], l[n + 2] = score, member
  l.n = n + 2
  l.old[member] = old or nil
end

-- ZREM member, which had the score `old`.
function Batch:rem(key, member, old)
  local l = self.zrem[key] or list(self, 'zrem', key)
  local n = l.n + 1
  l[n] = member
  l.n = n
  l.old[member] = old or nil
end

-- HDEL field, which held `old`.
function Batch:del(key, field, old)
  local l = self.hdel[key] or list(self, 'hdel', key)
  local n = l.n + 1
  l[n] = field
  l.n = n
  l.old[field] = old or nil
end

-- HDEL of a field whose value was not read. It cannot be taken back, so it comes last.
function Batch:del_last(key, field)
  local l = self.last[key] or list(self, 'last', key)
  local n = l.n + 1
  l[n] = field
  l.n = n
end

local COMMAND = { hset = 'HSET', zadd = 'ZADD', zrem = 'ZREM', hdel = 'HDEL', last = 'HDEL' }

-- Takes one applied step back, with what was there before.
local TAKE_BACK = {}

function TAKE_BACK.hset(key, l, first, final)
  for i = first, final, 2 do
    local field, old = l[i], l.old[l[i]]
    if old then
      redis.call('HSET', key, field, old)
    else
      redis.call('HDEL', key, field)
    end
  end
end

function TAKE_BACK.zadd(key, l, first, final)
  for i = first + 1, final, 2 do
    local member, old = l[i], l.old[l[i]]
    if old then
      redis.call('ZADD', key, old, member)
    else
      redis.call('ZREM', key, member)
    end
  end
end

function TAKE_BACK.zrem(key, l, first, final)
  for i = first, final do
    if l.old[l[i]] then
      redis.call('ZADD', key, l.old[l[i]], l[i])
    end
  end
end

function TAKE_BACK.hdel(key, l, first, final)
  for i = first, final do
    if l.old[l[i]] then
      redis.call('HSET', key, l[i], l.old[l[i]])
    end
  end
end

local ORDER = { 'hset', 'zadd', 'zrem', 'hdel', 'last' }

local function steps_of(batch)
  local steps = {}
  for _, kind in ipairs(ORDER) do
    for _, entry in ipairs(batch.keys) do
      if entry[1] == kind then
        local l = batch[kind][entry[2]]
        for first = 1, l.n, CHUNK do
          local final = math.min(first + CHUNK - 1, l.n)
          steps[#steps + 1] = { kind = kind, key = entry[2], list = l, first = first, final = final }
        end
      end
    end
  end
  return steps
end

-- Of the steps that cannot be taken back only the very last may stay so: nothing follows it.
-- What the others delete is read first.
local function read_lasts(steps)
  for n = 1, #steps - 1 do
    local step = steps[n]
    if step.kind == 'last' then
      local fields = step.list
      local old = redis.call('HMGET', step.key, unpack(fields, step.first, step.final))
      for i = step.first, step.final do
        fields.old[fields[i]] = old[i - step.first + 1] or nil
      end
      step.kind = 'hdel'
    end
  end
end

-- Adds the clock, the token and the counters of `q` to the batch.
local function keep_meta(batch, q)
  batch:set(q.meta, 'time', q.time, q.old_time)
  if q.token ~= tonumber(q.old_token or 0) then
    batch:set(q.meta, 'token', string.format('%.0f', q.token), q.old_token)
  end
  if q.grace_until ~= tonumber(q.old_grace_until or 0) then
    batch:set(q.meta, 'gap_from', q.gap_from, q.old_gap_from)
    batch:set(q.meta, 'grace_until', q.grace_until, q.old_grace_until)
  end
end

-- Applies everything, for the queues given, or nothing.
function Batch:commit(...)
  for _, q in ipairs({ ... }) do
    keep_stats(self, q)
    keep_meta(self, q)
  end
  local steps = steps_of(self)
  read_lasts(steps)
  for _, command in ipairs(WRITES) do
    if not redis.acl_check_cmd(command, steps[1].key, '1', 'x') then
      error({ err = 'NOPERM this user may not run ' .. command .. ', which Queasy needs' })
    end
  end
  for n = 1, #steps do
    local step = steps[n]
    local reply = redis.pcall(COMMAND[step.kind], step.key, unpack(step.list, step.first, step.final))
    if type(reply) == 'table' and reply.err then
      for m = n - 1, 1, -1 do
        TAKE_BACK[steps[m].kind](steps[m].key, steps[m].list, steps[m].first, steps[m].final)
      end
      error(reply)
    end
  end
  for _, q in ipairs({ ... }) do -- a later batch of the same call starts from here
    q.old_time, q.heard, q.old_token = q.time, q.time, q.token
    q.old_gap_from, q.old_grace_until = q.gap_from, q.grace_until
    q.counts = {}
  end
end
