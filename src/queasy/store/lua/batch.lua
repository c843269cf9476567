-- The writes of one call. They are collected while it computes and applied at its end, so
-- nothing is written before everything was read and checked. Redis has no rollback: should
-- a write fail all the same, `commit` takes back those before it.

local CHUNK, LONG = keys.CHUNK, keys.LONG
local keep_stats = stats.keep_stats

local Batch = {}

-- What a write, or taking it back, may need. Checked before the first write, because an
-- ACL that denies one of them would otherwise stop us half way. HSET is not among them: every batch
-- begins with one, for the clock, and when that is denied nothing was written.
local WRITES = { 'HDEL', 'ZADD', 'ZREM' }

local COMMAND = { hset = 'HSET', zadd = 'ZADD', zrem = 'ZREM', hdel = 'HDEL', last = 'HDEL' }
local WIDTH = { hset = 2, zadd = 2, zrem = 1, hdel = 1, last = 1 }
local ORDER = { 'hset', 'zadd', 'zrem', 'hdel', 'last' }

-- Of each kind a list for each key, by key and in order of first use: `pairs` has none.
function Batch.new()
  return {
    hset = {}, zadd = {}, zrem = {}, hdel = {}, last = {},
    set = Batch.set, add = Batch.add, rem = Batch.rem, del = Batch.del, del_last = Batch.del_last,
    all = Batch.all, all_last = Batch.all_last, commit = Batch.commit,
  }
end

-- The arguments of one command: `n` of them, of which `applied` are written. `old` has what was
-- there before for the first, second ... field or member; it is false while there was nothing. Of
-- what came all at once, the arguments may be in `args`, and `each_old` is what each of them was.
local function list(batch, kind, key)
  -- With room for two pairs, and no more than four fields: a table that grows is built anew whenever
  -- it has to double.
  local l = { nil, nil, nil, nil, key = key, n = 0, applied = 0, old = false }
  local of_kind = batch[kind]
  of_kind[key] = l
  of_kind[#of_kind + 1] = l
  return l
end

local function keep_old(l, n, old)
  l.old = l.old or { nil, nil, nil, nil }
  l.old[n] = old
end

-- Many at once, as a command of their own: the first `n` of the fields, members, or pairs of such in
-- `args`. What was there before is in `olds` (nil for nothing of any), or the same of each. The
-- tables may not change any more.
function Batch:all(kind, key, args, n, olds, each_old)
  local of_kind = self[kind]
  of_kind[#of_kind + 1] = {
    key = key, n = n, applied = 0, old = olds or false, args = args, each_old = each_old,
  }
  of_kind[key] = nil -- what comes later is written later
end

-- HDEL of fields whose values were not read: see `check_lasts`.
function Batch:all_last(key, fields, n)
  local l = self.last[key]
  if not l then
    self:all('last', key, fields, n)
  end
  for i = 1, l and n or 0 do
    self:del_last(key, fields[i])
  end
end

-- HSET field to value; `old` is what it held, nil for nothing.
function Batch:set(key, field, value, old)
  local l = self.hset[key] or list(self, 'hset', key)
  local n = l.n
  l[n + 1], l[n + 2] = field, value
  l.n = n + 2
  if old then
    keep_old(l, n / 2 + 1, old)
  end
end

-- ZADD member at score; `old` is its score before, nil for none.
function Batch:add(key, member, score, old)
  local l = self.zadd[key] or list(self, 'zadd', key)
  local n = l.n
  l[n + 1], l[n + 2] = score, member
  l.n = n + 2
  if old then
    keep_old(l, n / 2 + 1, old)
  end
end

local function remove_from(l, field, old)
  local n = l.n + 1
  l[n] = field
  l.n = n
  if old then
    keep_old(l, n, old)
  end
end

-- ZREM member, which had the score `old`.
function Batch:rem(key, member, old)
  remove_from(self.zrem[key] or list(self, 'zrem', key), member, old)
end

-- HDEL field, which held `old`.
function Batch:del(key, field, old)
  remove_from(self.hdel[key] or list(self, 'hdel', key), field, old)
end

-- HDEL of a field whose value was not read. It cannot be taken back, so it comes last.
function Batch:del_last(key, field)
  remove_from(self.last[key] or list(self, 'last', key), field)
end

-- Takes one write to a key back, with what was there before.
local TAKE_BACK = {}

function TAKE_BACK.hset(key, field, old)
  if old then
    redis.call('HSET', key, field, old)
  else
    redis.call('HDEL', key, field)
  end
end

function TAKE_BACK.zadd(key, member, old)
  if old then
    redis.call('ZADD', key, old, member)
  else
    redis.call('ZREM', key, member)
  end
end

function TAKE_BACK.zrem(key, member, old)
  if old then
    redis.call('ZADD', key, old, member)
  end
end

function TAKE_BACK.hdel(key, field, old)
  if old then
    redis.call('HSET', key, field, old)
  end
end

-- All that was applied, the last first: of a field that was written twice the first `old` holds. When
-- one of `last` fails, none of them was.
local function take_back(batch)
  for k = #ORDER - 1, 1, -1 do
    local kind = ORDER[k]
    for i = #batch[kind], 1, -1 do
      local l, width = batch[kind][i], WIDTH[kind]
      for n = l.applied / width, 1, -1 do
        -- A field is the first of its pair, a member the second.
        local what = (l.args or l)[kind == 'hset' and 2 * n - 1 or width * n]
        TAKE_BACK[kind](l.key, what, l.each_old or l.old and l.old[n])
      end
    end
  end
end

-- Names what is denied: not every server does.
local function check(command, key)
  if not redis.acl_check_cmd(command, key, '1', 'x') then
    error({ err = 'NOPERM this user may not run ' .. command .. ', which Queasy needs' })
  end
end

-- Applies one list. Should that fail, all that were applied are taken back.
local function apply(batch, command, l)
  local args, n = l.args or l, l.n
  for first = 1, n, CHUNK do
    local final = n - first < CHUNK and n or first + CHUNK - 1
    local reply = redis.pcall(command, l.key, unpack(args, first, final))
    if type(reply) == 'table' and reply.err then
      take_back(batch)
      check(command, l.key)
      error(reply)
    end
    l.applied = final
  end
end

-- What deletes values that nobody read cannot be taken back. The first of those commands may fail, and
-- the others cannot: HDEL needs nothing but a hash, or no key, which is seen to before anything is written.
local function check_lasts(batch)
  for i = 2, #batch.last do
    redis.call('HLEN', batch.last[i].key)
  end
end

-- Adds the clock, the token and the counters of `q` to the batch.
local function keep_meta(batch, q)
  local old = q.old_clock
  batch:set(q.meta, 'time', q.time, old[1])
  if q.token ~= q.kept_token then
    batch:set(q.meta, 'token', q.token, old[2])
  end
  if q.grace_until ~= q.kept_grace then
    batch:set(q.meta, 'gap_from', q.gap_from, old[4])
    batch:set(q.meta, 'grace_until', q.grace_until, old[5])
  end
end

-- Asked once in a call: who may, may until its end.
local function check_writes(q, key)
  for i = 1, q.checked and 0 or #WRITES do
    check(WRITES[i], key)
  end
  q.checked = true
end

-- A later batch of the same call starts from here.
local function start_from_here(q)
  q.heard, q.counts, q.kept_token, q.kept_grace = q.time, {}, q.token, q.grace_until
  q.old_clock = { q.time, q.token, false, q.gap_from, q.grace_until }
end

-- Applies everything, for a queue and perhaps its fail queue, or nothing.
function Batch:commit(q, fq)
  keep_stats(self, q)
  keep_meta(self, q)
  if fq then
    keep_stats(self, fq)
    keep_meta(self, fq)
  end
  check_lasts(self)
  check_writes(q, q.meta)
  for k = 1, #ORDER do
    local of_kind, command = self[ORDER[k]], COMMAND[ORDER[k]]
    for i = 1, #of_kind do
      apply(self, command, of_kind[i])
    end
  end
  start_from_here(q)
  if fq then
    start_from_here(fq)
  end
end

-- Makes tables of what many jobs are added to: always of `waiting`, of `data` unless they have long
-- payloads, of `info` if they have such.
local function make_tables(q, batch, with_data, with_info)
  batch:add(q.waiting, LONG, 0)
  batch:rem(q.waiting, LONG)
  if with_data then
    batch:set(q.data, LONG, LONG)
    batch:del(q.data, LONG)
  end
  if with_info then
    batch:set(q.info, LONG, LONG)
    batch:del(q.info, LONG)
  end
end

return {
  new = Batch.new, make_tables = make_tables,
}
