-- redis-work-queue: two lists of ids, and for each item a key with its data and one with its lease.
--
-- The protocol has keys for each item, and a call that takes one learns its id from a list. So the
-- functions make the names of these keys themselves. They touch the keys of an item before they
-- change a list: where such a key cannot be reached (its slot of a cluster is being moved), the
-- call fails and has changed nothing.

local CHUNK, refuse = arguments.CHUNK, arguments.refuse

-- The most ids without data that one call drops.
local MAX_DROPS = 100
-- How many entries of lists one call may search.
local MAX_SEARCHED = 1000000

-- How the lease key of an item is called: in the document, and in the published packages. Both are
-- always read, so that workers of both kinds may share a queue; each worker writes its own.
local LEASE_NAMES = { document = 'lease:', published = 'leased_by_session:' }

-- Raises before anything is written if another program has stored something else there.
local function check_list(key)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= 'list' then
    error({ err = 'WRONGTYPE key ' .. key .. ' is a ' .. kind .. ', expected a list' })
  end
end

local function open(keys)
  local base = (keys[1] or ''):match('^(.*:)queue$')
  if not base or keys[2] ~= base .. 'processing' then
    refuse('expected the keys <prefix>:queue and <prefix>:processing')
  end
  check_list(keys[1])
  check_list(keys[2])
  return {
    queue = keys[1],
    processing = keys[2],
    cleaning = base .. 'cleaning',
    item = base .. 'item:',
    lease = base .. LEASE_NAMES.document,
    published = base .. LEASE_NAMES.published,
  }
end

local function lease_key(q, layout, id)
  local name = layout == 'document' and q.lease or layout == 'published' and q.published
  return (name or refuse('expected document or published for the layout')) .. id
end

local function is_leased(q, id)
  return redis.call('EXISTS', q.lease .. id) + redis.call('EXISTS', q.published .. id) > 0
end

-- Raises, before anything is written, if a key of this item cannot be reached.
local function touch(q, id)
  redis.call('EXISTS', q.item .. id)
  is_leased(q, id)
end

local function delete_leases(q, id)
  redis.call('DEL', q.lease .. id)
  redis.call('DEL', q.published .. id)
end

-- The data of an item; nil if there is none. A key of another type holds no data of an item.
local function data_of(q, id)
  local data = redis.pcall('GET', q.item .. id)
  if type(data) == 'table' and data.err then
    if not data.err:find('WRONGTYPE', 1, true) then
      error(data)
    end
    data = nil
  end
  return data or nil
end

-- The lease key that this session holds for an item; nil if its lease is over.
local function held_lease(q, id, session)
  for _, key in ipairs({ q.lease .. id, q.published .. id }) do
    if redis.call('GET', key) == session then
      return key
    end
  end
end

local function add(q, id, data)
  if not redis.call('SET', q.item .. id, data, 'NX') then
    return 0
  end
  redis.call('LPUSH', q.queue, id)
  return 1
end

-- Moves an id that is leased already out of the queue: its holder works on it. If that lease
-- expires, a clean returns the id as any other.
local function set_aside(q, id)
  if redis.call('LPOS', q.processing, id) then
    redis.call('RPOP', q.queue)
  else
    redis.call('LMOVE', q.queue, q.processing, 'RIGHT', 'LEFT')
  end
end

local function take(q, layout, session, ms)
  for _ = 1, MAX_DROPS do
    local id = redis.call('LINDEX', q.queue, -1)
    if not id then
      return { 'empty' }
    end
    local data = data_of(q, id)
    if not data then
      redis.call('RPOP', q.queue)
    elseif is_leased(q, id) then
      set_aside(q, id)
    else
      redis.call('SET', lease_key(q, layout, id), session, 'PX', ms)
      redis.call('LMOVE', q.queue, q.processing, 'RIGHT', 'LEFT')
      return { 'taken', id, data }
    end
  end
  return { 'more' }
end

local function remove_from_lists(q, id)
  local removed = redis.call('LREM', q.processing, 0, id)
  return removed > 0 and removed or redis.call('LREM', q.queue, 0, id)
end

-- The document counts as the first completion the one that deletes the data. The published packages
-- first remove the id from a list, later delete the data, and count the one that removed it.
local function finish(q, layout, id)
  touch(q, id)
  lease_key(q, layout, id) -- refuses another layout
  if layout == 'document' then
    local done = redis.call('DEL', q.item .. id)
    delete_leases(q, id)
    remove_from_lists(q, id)
    return done
  end
  if remove_from_lists(q, id) == 0 then
    return 0
  end
  local done = redis.call('DEL', q.item .. id)
  delete_leases(q, id)
  return done
end

local function extend(q, id, session, ms)
  local key = held_lease(q, id, session)
  return key and redis.call('PEXPIRE', key, ms) or 0
end

-- Ends the lease of a session and puts its item back, to the front or to the back.
local function put_back(q, id, session, place)
  local push = place == 'front' and 'RPUSH' or place == 'back' and 'LPUSH'
    or refuse('expected front or back')
  local key, data = held_lease(q, id, session), data_of(q, id)
  if not key then
    return 0
  end
  redis.call('DEL', key)
  if redis.call('LREM', q.processing, 0, id) == 0 then
    return redis.call('LPOS', q.queue, id) and 1 or 0
  end
  if not data then
    return 0
  end
  redis.call(push, q.queue, id)
  return 1
end

-- Puts back what a session took by a call whose answer was lost: one of the last items taken.
local function undo(q, session)
  local count = 0
  for _, id in ipairs(redis.call('LRANGE', q.processing, 0, CHUNK - 1)) do
    count = count + put_back(q, id, session, 'front')
  end
  return count
end

-- A page of a list, counted from its right end: ids that come meanwhile do not move it.
local function page(key, offset)
  return redis.call('LRANGE', key, -(offset + CHUNK), -(offset + 1))
end

local function without_lease(q, ids)
  local found = {}
  for _, id in ipairs(ids) do
    if not is_leased(q, id) then
      found[#found + 1] = id
    end
  end
  return found
end

local function unleased(q, offset)
  local ids = page(q.processing, offset)
  return { #ids, without_lease(q, ids) }
end

-- One step through all keys of the database: the items without a lease that it met.
local function scan(q, cursor)
  local pattern = q.item:gsub('[%*%?%[%]\\]', '\\%0') .. '*'
  local step = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', CHUNK, 'TYPE', 'string')
  local ids = {}
  for at, key in ipairs(step[2]) do
    ids[at] = key:sub(#q.item + 1)
  end
  return { step[1], without_lease(q, ids) }
end

-- Returns items to the queue that exist, have no lease and are not in the queue. Stops early if the
-- lists are long.
local function restore(q, ids)
  local restored, handled, searched = 0, 0, 0
  check_list(q.cleaning)
  for _, id in ipairs(ids) do
    if handled > 0 and searched > MAX_SEARCHED then
      break
    end
    handled = handled + 1
    local data = data_of(q, id)
    if not is_leased(q, id) then
      searched = searched + redis.call('LLEN', q.queue) + redis.call('LLEN', q.processing)
      redis.call('LREM', q.processing, 0, id)
      if data and not redis.call('LPOS', q.queue, id) then
        redis.call('LPUSH', q.queue, id)
        redis.call('LREM', q.cleaning, 0, id) -- where cleaners of the packages note their work
        restored = restored + 1
      end
    end
  end
  return { restored, handled }
end

return {
  open = open,
  add = add,
  take = take,
  finish = finish,
  extend = extend,
  put_back = put_back,
  undo = undo,
  page = page,
  unleased = unleased,
  scan = scan,
  restore = restore,
}
