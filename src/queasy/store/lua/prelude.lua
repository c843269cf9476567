-- Globals as locals, for all modules: a library finds a global through a metatable each time.
-- While the library loads, the only global is `redis`, and it is not the one that a call sees. So
-- api.lua registers with `loader`, and sets the other names at the first call.
local loader = redis
local function globals()
  return redis, string, math, ipairs, tonumber, unpack, type
end
local redis, string, math, ipairs, tonumber, unpack, type
