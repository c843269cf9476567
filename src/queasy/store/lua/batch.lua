-- The writes of one step of a call (a dequeue has several: it ends leases, sweeps, takes jobs). A
-- step collects its writes while it computes and applies them at its end, so that it reads and
-- checks everything before it writes. The server has no rollback: if a write fails all the same,
-- `commit` undoes the writes before it.

local CHUNK, LONG_ENTRY, heard_apart = keys.CHUNK, keys.LONG_ENTRY, keys.heard_apart
local FORMAT = keys.FORMAT
local write_stats = stats.write_stats

local Batch = {}

-- Commands that a write or its undoing may need. `commit` checks the permission for each before the
-- first write, because an ACL that denies one of them would stop it half way. HSET is not in the
-- list: every batch begins with an HSET, for the clock, and if that is denied nothing has been
-- written.
local WRITES = { 'HDEL', 'ZADD', 'ZREM' }

local COMMAND = { hset = 'HSET', zadd = 'ZADD', zrem = 'ZREM', hdel = 'HDEL', last = 'HDEL' }
local WIDTH = { hset = 2, zadd = 2, zrem = 1, hdel = 1, last = 1 }
local ORDER = { 'hset', 'zadd', 'zrem', 'hdel', 'last' }

-- For each kind of write, one list of arguments for each key: found by key, and kept in order of
-- first use, because `pairs` has no order.
function Batch.new()
  return {
    hset = {}, zadd = {}, zrem = {}, hdel = {}, last = {},
    set = Batch.set, add = Batch.add, rem = Batch.rem, del = Batch.del,
    del_unread = Batch.del_unread, bulk = Batch.bulk, bulk_del_unread = Batch.bulk_del_unread,
    commit = Batch.commit,
  }
end

-- The arguments of one command: `n` of them, of which the first `applied` are written. `old` has
-- the previous values, by number of the field or member; it is false if none had one. A bulk list
-- has its arguments in `args`; `each_old` is then the previous value of every entry.
local function list(batch, kind, key)
  -- Space for two pairs, and at most four named fields: Lua rebuilds a growing table each time its
  -- size doubles.
  local l = { nil, nil, nil, nil, key = key, n = 0, applied = 0, old = false }
  local of_kind = batch[kind]
  of_kind[key] = l
  of_kind[#of_kind + 1] = l
  return l
end

local function remember_old(l, n, old)
  l.old = l.old or { nil, nil, nil, nil }
  l.old[n] = old
end

-- Adds many entries as a command of their own: the first `n` values of `args`, which are fields,
-- members, or pairs. `olds` has the previous values (nil if there were none); `each_old` is the
-- previous value of every entry. The caller must not change the tables afterwards.
function Batch:bulk(kind, key, args, n, olds, each_old)
  local of_kind = self[kind]
  of_kind[#of_kind + 1] = {
    key = key, n = n, applied = 0, old = olds or false, args = args, each_old = each_old,
  }
  of_kind[key] = nil -- later writes to this key come after this command
end

-- HDEL of many fields, without their old values: see `check_unread_keys`.
function Batch:bulk_del_unread(key, fields, n)
  local l = self.last[key]
  if not l then
    self:bulk('last', key, fields, n)
  end
  for i = 1, l and n or 0 do
    self:del_unread(key, fields[i])
  end
end

-- HSET field to value; `old` is its previous value, nil if it had none.
function Batch:set(key, field, value, old)
  local l = self.hset[key] or list(self, 'hset', key)
  local n = l.n
  l[n + 1], l[n + 2] = field, value
  l.n = n + 2
  if old then
    remember_old(l, n / 2 + 1, old)
  end
end

-- ZADD member at score; `old` is its previous score, nil if it had none.
function Batch:add(key, member, score, old)
  local l = self.zadd[key] or list(self, 'zadd', key)
  local n = l.n
  l[n + 1], l[n + 2] = score, member
  l.n = n + 2
  if old then
    remember_old(l, n / 2 + 1, old)
  end
end

local function remove_from(l, field, old)
  local n = l.n + 1
  l[n] = field
  l.n = n
  if old then
    remember_old(l, n, old)
  end
end

-- ZREM member; `old` is its score.
function Batch:rem(key, member, old)
  remove_from(self.zrem[key] or list(self, 'zrem', key), member, old)
end

-- HDEL field; `old` is its value.
function Batch:del(key, field, old)
  remove_from(self.hdel[key] or list(self, 'hdel', key), field, old)
end

-- HDEL of a field, without its old value. It cannot be undone, so `commit` runs it last.
function Batch:del_unread(key, field)
  remove_from(self.last[key] or list(self, 'last', key), field)
end

-- For each kind of write: undoes one write to a key, given the previous value.
local UNDO = {}

function UNDO.hset(key, field, old)
  if old then
    redis.call('HSET', key, field, old)
  else
    redis.call('HDEL', key, field)
  end
end

function UNDO.zadd(key, member, old)
  if old then
    redis.call('ZADD', key, old, member)
  else
    redis.call('ZREM', key, member)
  end
end

function UNDO.zrem(key, member, old)
  if old then
    redis.call('ZADD', key, old, member)
  end
end

function UNDO.hdel(key, field, old)
  if old then
    redis.call('HSET', key, field, old)
  end
end

-- Undoes all applied writes, the last one first: a field that was written twice ends with its first
-- `old`. If a command of kind `last` fails, none of that kind was applied.
local function roll_back(batch)
  for k = #ORDER - 1, 1, -1 do
    local kind = ORDER[k]
    for i = #batch[kind], 1, -1 do
      local l, width = batch[kind][i], WIDTH[kind]
      for n = l.applied / width, 1, -1 do
        -- The field is the first of its pair, the member the second.
        local what = (l.args or l)[kind == 'hset' and 2 * n - 1 or width * n]
        UNDO[kind](l.key, what, l.each_old or l.old and l.old[n])
      end
    end
  end
end

-- Raises an error that names the denied command: not every server names it.
local function check_permission(command, key)
  if not redis.acl_check_cmd(command, key, '1', 'x') then
    error({ err = 'NOPERM this user may not run ' .. command .. ', which Queasy needs' })
  end
end

-- Applies one list. If that fails, undoes everything that was applied.
local function apply(batch, command, l)
  local args, n = l.args or l, l.n
  for first = 1, n, CHUNK do
    local final = n - first < CHUNK and n or first + CHUNK - 1
    local reply = redis.pcall(command, l.key, unpack(args, first, final))
    if type(reply) == 'table' and reply.err then
      roll_back(batch)
      check_permission(command, l.key)
      error(reply)
    end
    l.applied = final
  end
end

-- An HDEL of values that were not read cannot be undone. The first such command may fail; the
-- others must not. HDEL fails only if the key is not a hash, so this checks the keys before
-- anything is written.
local function check_unread_keys(batch)
  for i = 2, #batch.last do
    redis.call('HLEN', batch.last[i].key)
  end
end

-- Adds the clock and the token of `q` to the batch.
local function write_meta(batch, q)
  local old = q.old_clock
  batch:set(q.meta, 'time', q.time, old[1])
  if not old[7] then -- the first write to this queue
    batch:set(q.meta, 'format', FORMAT)
  end
  if q.token ~= q.stored_token then
    batch:set(q.meta, 'token', q.token, old[2])
  end
  if q.back_at or q.grace_until ~= q.stored_grace then
    batch:set(q.meta, 'gap_from', q.gap_from, old[4])
    batch:set(q.meta, 'grace_until', q.grace_until, old[5])
    if q.back_at then
      batch:set(q.meta, 'back_at', q.back_at, q.old_back)
    end
  end
  local heard = heard_apart(q)
  if heard then
    batch:set(q.meta, 'heard', heard, old[6])
  elseif old[6] then
    batch:del(q.meta, 'heard', old[6])
  end
end

-- Checks once in a call: permissions do not change during a call.
local function check_permissions(q, key)
  for i = 1, q.checked and 0 or #WRITES do
    check_permission(WRITES[i], key)
  end
  q.checked = true
end

-- Makes a later batch of the same call start from the state that was just written.
local function mark_committed(q)
  local heard = heard_apart(q)
  q.last_contact, q.stored_time, q.counts = heard or q.time, q.time, {}
  q.stored_token, q.stored_grace, q.back_at = q.token, q.grace_until, nil
  q.old_clock = { q.time, q.token, false, q.gap_from, q.grace_until, heard, FORMAT,
    q.old_clock[8] } -- the mark of records.lua
end

-- Applies all writes to a queue, and to its fail queue if given, or none.
function Batch:commit(q, fq)
  write_stats(self, q)
  write_meta(self, q)
  if fq then
    write_stats(self, fq)
    write_meta(self, fq)
  end
  check_unread_keys(self)
  check_permissions(q, q.meta)
  for k = 1, #ORDER do
    local of_kind, command = self[ORDER[k]], COMMAND[ORDER[k]]
    for i = 1, #of_kind do
      apply(self, command, of_kind[i])
    end
  end
  mark_committed(q)
  if fq then
    mark_committed(fq)
  end
end

-- Forces keys to which a call adds many jobs out of the listpack encoding (see BULK): always
-- `waiting`, `data` if the payloads are short, `info` if the jobs have records.
local function avoid_listpacks(q, batch, with_data, with_info)
  batch:add(q.waiting, LONG_ENTRY, 0)
  batch:rem(q.waiting, LONG_ENTRY)
  if with_data then
    batch:set(q.data, LONG_ENTRY, LONG_ENTRY)
    batch:del(q.data, LONG_ENTRY)
  end
  if with_info then
    batch:set(q.info, LONG_ENTRY, LONG_ENTRY)
    batch:del(q.info, LONG_ENTRY)
  end
end

return {
  new = Batch.new, avoid_listpacks = avoid_listpacks,
}
