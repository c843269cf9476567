-- Counters: a total for each kind of event, and a count for each of the last 60 minutes.
--
-- stats  total:kind -> the total of all time
--        minute:kind -> the last minute with an event, count:kind -> the events in that minute
--        minute % 60:kind -> 'minute count', for earlier minutes: a ring, so the hash cannot grow

local MAX_INTEGER, LONG_ENTRY, stored_number = keys.MAX_INTEGER, keys.LONG_ENTRY, keys.stored_number

local MINUTES = 60

local function count(q, kind, n)
  q.counts[kind] = (q.counts[kind] or 0) + (n or 1)
end

-- The names of the first three fields of each kind. There are few kinds.
local FIELDS = {}

-- Adds a past minute to the ring, where it overwrites the minute of an hour before. Forces the hash
-- out of the listpack encoding: with 60 minutes of each kind, every call would search a long list.
local function archive_minute(batch, q, kind, minute, n)
  local slot = string.format('%02.0f:', minute % MINUTES) .. kind
  local old = redis.call('HGET', q.stats, slot)
  local old_minute, old_count = tostring(old or ''):match('^(%d+) (%d+)$')
  if tonumber(old_minute) == minute then -- the clock was set back and reached this minute again
    n = n + (stored_number(old_count, MAX_INTEGER) or 0)
  end
  batch:set(q.stats, slot, string.format('%.0f %.0f', minute, n), old)
  batch:set(q.stats, LONG_ENTRY, LONG_ENTRY)
  batch:del(q.stats, LONG_ENTRY)
end

-- Adds the events of this call to the batch.
local function write_stats(batch, q)
  local now = math.floor(q.now / 60000)
  for kind, n in pairs(q.counts) do
    local fields = FIELDS[kind] or { 'total:' .. kind, 'minute:' .. kind, 'count:' .. kind }
    FIELDS[kind] = fields
    local old = redis.call('HMGET', q.stats, fields[1], fields[2], fields[3])
    local minute = stored_number(old[2], MAX_INTEGER)
    local in_minute = stored_number(old[3], MAX_INTEGER) or 0
    if minute ~= now then
      if minute and in_minute > 0 then
        archive_minute(batch, q, kind, minute, in_minute)
      end
      batch:set(q.stats, fields[2], now, old[2])
      in_minute = 0
    end
    batch:set(q.stats, fields[1], (stored_number(old[1], MAX_INTEGER) or 0) + n, old[1])
    batch:set(q.stats, fields[3], in_minute + n, old[3])
  end
end

-- The totals, and the minutes of the last hour: kind, minute ('' for the total), count.
local function read_stats(q)
  local raw = redis.call('HGETALL', q.stats)
  local out, minutes, now = {}, {}, math.floor(q.now / 60000)
  local function add(kind, minute, n)
    minute, n = stored_number(minute, now), stored_number(n, MAX_INTEGER)
    if minute and n and n > 0 and now - minute < MINUTES then
      local at = kind .. ' ' .. minute
      if not minutes[at] then
        minutes[at] = { kind, string.format('%.0f', minute), 0 }
        out[#out + 1] = minutes[at]
      end
      minutes[at][3] = minutes[at][3] + n
    end
  end
  local counts = {}
  for i = 1, #raw, 2 do
    counts[raw[i]:match('^count:(.*)$') or ''] = raw[i + 1]
  end
  for i = 1, #raw, 2 do
    local name, kind = raw[i]:match('^(%w+):([%w_]+)$')
    if name == 'total' then
      out[#out + 1] = { kind, '', stored_number(raw[i + 1], MAX_INTEGER) or 0 }
    elseif name == 'minute' then
      add(kind, raw[i + 1], counts[kind])
    elseif tonumber(name) then
      add(kind, raw[i + 1]:match('^(%d+) (%d+)$'))
    end
  end
  for _, row in ipairs(out) do
    row[3] = string.format('%.0f', row[3])
  end
  return out
end

return {
  count = count, write_stats = write_stats, read_stats = read_stats,
}
