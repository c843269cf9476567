-- What is used at every turn, as locals: a library finds a global by way of a metatable, each time.
-- While it is loaded there are none but `redis`, and that is another one then: `register` uses that
-- one, and sets these at the first call.
local loader = redis
local function globals()
  return redis, string, math, ipairs, tonumber, unpack, type
end
local redis, string, math, ipairs, tonumber, unpack, type
