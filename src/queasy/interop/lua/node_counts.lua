-- How many jobs a queue of Queasy for Node has. Its own library has no function for that.

-- The most clients whose jobs one call counts.
local MAX_CLIENTS = 10000

local function counts(key)
  local active = 0
  for _, client in ipairs(redis.call('ZRANGE', key .. ':expiry', 0, MAX_CLIENTS - 1)) do
    local checkouts = key .. ':checkouts:' .. client
    if redis.call('TYPE', checkouts).ok == 'set' then
      active = active + redis.call('SCARD', checkouts)
    end
  end
  return { redis.call('ZCOUNT', key, 0, '+inf'), redis.call('ZCOUNT', key, '-inf', '(0'), active }
end

return {
  counts = counts,
}
