-- Takes the place of clock.lua in the build of the library for tests. There, each function has one
-- argument more, the first: the time of the call in milliseconds, or '' for the server's time. The
-- functions have other names, so a server can have both builds.

local logical = ''
local register_function = loader.register_function

local function register_timed(entry)
  local callback = entry.callback
  function entry.callback(keys, argv)
    logical = table.remove(argv, 1)
    return callback(keys, argv)
  end
  entry.function_name = entry.function_name:gsub('^queasy_v1_', 'queasy_test_')
  register_function(entry)
end

loader = { register_function = register_timed }

local function server_time()
  if logical and logical ~= '' then
    return tonumber(logical)
  end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + tonumber(t[2]) / 1000
end

return {
  server_time = server_time,
}
