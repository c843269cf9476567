-- Counters: a total for each kind of event, and one for each of the last 60 minutes.
--
-- stats  total:kind -> of all time
--        minute:kind -> the last minute with any, count:kind -> of that minute
--        minute % 60:kind -> 'minute count': of the minutes before. A ring, so the hash cannot grow

local MOST, LONG, kept = keys.MOST, keys.LONG, keys.kept

local MINUTES = 60

local function count(q, kind, n)
  q.counts[kind] = (q.counts[kind] or 0) + (n or 1)
end

-- The first three fields of each kind, as there are only so many of these.
local FIELDS = {}

-- Adds a minute that is over to the ring. One of an hour ago is overwritten. With all these minutes
-- the hash is too long to be a list: each call of a queue that is older would search it.
local function keep_minute(batch, q, kind, minute, n)
  local slot = string.format('%02.0f:', minute % MINUTES) .. kind
  local old = redis.call('HGET', q.stats, slot)
  local old_minute, old_count = tostring(old or ''):match('^(%d+) (%d+)$')
  if tonumber(old_minute) == minute then -- the clock was set back, and came here again
    n = n + (kept(old_count, MOST) or 0)
  end
  batch:set(q.stats, slot, string.format('%.0f %.0f', minute, n), old)
  batch:set(q.stats, LONG, LONG)
  batch:del(q.stats, LONG)
end

-- Adds what was counted in this call to the batch.
local function keep_stats(batch, q)
  local now = math.floor(q.now / 60000)
  for kind, n in pairs(q.counts) do
    local fields = FIELDS[kind] or { 'total:' .. kind, 'minute:' .. kind, 'count:' .. kind }
    FIELDS[kind] = fields
    local old = redis.call('HMGET', q.stats, fields[1], fields[2], fields[3])
    local minute, in_minute = kept(old[2], MOST), kept(old[3], MOST) or 0
    if minute ~= now then
      if minute and in_minute > 0 then
        keep_minute(batch, q, kind, minute, in_minute)
      end
      batch:set(q.stats, fields[2], now, old[2])
      in_minute = 0
    end
    batch:set(q.stats, fields[1], (kept(old[1], MOST) or 0) + n, old[1])
    batch:set(q.stats, fields[3], in_minute + n, old[3])
  end
end

-- The totals, and the minutes no older than an hour: kind, minute ('' for the total), count.
local function read_stats(q)
  local raw = redis.call('HGETALL', q.stats)
  local out, minutes, now = {}, {}, math.floor(q.now / 60000)
  local function add(kind, minute, n)
    minute, n = kept(minute, now), kept(n, MOST)
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
      out[#out + 1] = { kind, '', kept(raw[i + 1], MOST) or 0 }
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
  count = count, keep_stats = keep_stats, read_stats = read_stats,
}
