-- Counters: a total for each kind of event, and one for each of the last 60 minutes.
--
-- stats  total:kind -> 'total minute count': of all time, and of the last minute with any
--        minute % 60:kind -> 'minute count': of the minutes before. A ring, so the hash cannot grow

local MINUTES = 60

local function count(q, kind, n)
  q.counts[kind] = (q.counts[kind] or 0) + (n or 1)
end

-- The total, the last minute and its count, of an entry as above; 0 for what cannot be read.
local function read_total(raw)
  local total, minute, in_minute = tostring(raw or ''):match('^(%d+) ?(%d*) ?(%d*)$')
  return kept(total, MOST) or 0, kept(minute, MOST) or 0, kept(in_minute, MOST) or 0
end

-- Adds a minute that is over to the ring. One of an hour ago is overwritten.
local function keep_minute(batch, q, kind, minute, n)
  local slot = string.format('%02.0f:', minute % MINUTES) .. kind
  local old = redis.call('HGET', q.stats, slot)
  local old_minute, old_count = tostring(old or ''):match('^(%d+) (%d+)$')
  if tonumber(old_minute) == minute then -- the clock was set back, and came here again
    n = n + (kept(old_count, MOST) or 0)
  end
  batch:set(q.stats, slot, string.format('%.0f %.0f', minute, n), old)
end

-- Adds what was counted in this call to the batch.
local function keep_stats(batch, q)
  local now = math.floor(q.now / 60000)
  for kind, n in pairs(q.counts) do
    local field = 'total:' .. kind
    local old = redis.call('HGET', q.stats, field)
    local total, minute, in_minute = read_total(old)
    if minute ~= now then
      if in_minute > 0 then
        keep_minute(batch, q, kind, minute, in_minute)
      end
      in_minute = 0
    end
    batch:set(q.stats, field, string.format('%.0f %.0f %.0f', total + n, now, in_minute + n), old)
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
  for i = 1, #raw, 2 do
    local kind, slot_kind = raw[i]:match('^total:([%w_]+)$'), raw[i]:match('^%d+:([%w_]+)$')
    if kind then
      local total, minute, in_minute = read_total(raw[i + 1])
      out[#out + 1] = { kind, '', total }
      add(kind, minute, in_minute)
    elseif slot_kind then
      add(slot_kind, raw[i + 1]:match('^(%d+) (%d+)$'))
    end
  end
  for _, row in ipairs(out) do
    row[3] = string.format('%.0f', row[3])
  end
  return out
end
