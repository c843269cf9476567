-- Counters: a total for each kind of event, and one for each of the last 60 minutes.
-- The minutes are a ring, so the hash cannot grow.

local MINUTES = 60

local function count(q, kind, n)
  q.counts[kind] = (q.counts[kind] or 0) + (n or 1)
end

local function stat_fields(q, kind)
  local minute = math.floor(q.now / 60000)
  return 'total:' .. kind, string.format('%02.0f:', minute % MINUTES) .. kind, minute
end

-- Adds what was counted in this call to the batch. A minute's value is "minute count";
-- one of an hour ago is overwritten.
local function keep_stats(batch, q)
  for kind, n in pairs(q.counts) do
    local total, slot, minute = stat_fields(q, kind)
    local old = redis.call('HMGET', q.stats, total, slot)
    local old_minute, old_count = tostring(old[2] or ''):match('^(%d+) (%d+)$')
    local in_minute = n
    if tonumber(old_minute) == minute then
      in_minute = in_minute + (kept(old_count, MOST) or 0)
    end
    batch:set(q.stats, total, string.format('%.0f', (kept(old[1], MOST) or 0) + n), old[1])
    batch:set(q.stats, slot, string.format('%.0f %.0f', minute, in_minute), old[2])
  end
end

-- The totals, and the minutes no older than an hour: kind, minute ('' for the total), count.
local function read_stats(q)
  local raw = redis.call('HGETALL', q.stats)
  local out = {}
  local minute = math.floor(q.now / 60000)
  for i = 1, #raw, 2 do
    local kind = raw[i]:match('^total:([%w_]+)$')
    if kind then
      out[#out + 1] = { kind, '', string.format('%.0f', kept(raw[i + 1], MOST) or 0) }
    else
      local slot_kind = raw[i]:match('^%d+:([%w_]+)$')
      local of, n = raw[i + 1]:match('^(%d+) (%d+)$')
      if slot_kind and kept(of, minute) and kept(n, MOST) and minute - tonumber(of) < MINUTES then
        out[#out + 1] = { slot_kind, of, n }
      end
    end
  end
  return out
end
