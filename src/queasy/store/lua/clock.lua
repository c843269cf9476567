-- The clock: the server's. The library takes no time from its callers. Only the build for tests has
-- another clock in the place of this file: see library.py.

-- The time in milliseconds, with a fraction.
local function server_time()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + tonumber(t[2]) / 1000
end

return {
  server_time = server_time,
}
