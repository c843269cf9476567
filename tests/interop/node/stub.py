"""A stand-in for the library that Queasy for Node loads: its documented functions, nothing more.

It is written from the same reference table, keeps the documented records, has its known defects
(no function asks who holds a job), and replies as little as the table says.
"""

SOURCE = """#!lua name=queasy
local function add(key, id, score, data)
  redis.call('HSET', key .. ':waiting_job:' .. id, 'id', id, 'data', data)
  redis.call('HSETNX', key .. ':waiting_job:' .. id, 'retry_count', 0)
  redis.call('HSETNX', key .. ':waiting_job:' .. id, 'stall_count', 0)
  redis.call('ZADD', key, score, id)
end

local function dispatch(keys, args)
  local id, score = args[1], tonumber(args[2])
  if redis.call('EXISTS', keys[1] .. ':active_job:' .. id) == 1 then
    score = -score
  end
  add(keys[1], id, score, args[3])
  return redis.status_reply('OK')
end

local function dequeue(keys, args)
  local client, now, expiry, limit = args[1], args[2], args[3], args[4]
  local jobs = {}
  for _, id in ipairs(redis.call('ZRANGE', keys[1], 0, now, 'BYSCORE', 'LIMIT', 0, limit)) do
    redis.call('ZREM', keys[1], id)
    redis.call('RENAME', keys[1] .. ':waiting_job:' .. id, keys[1] .. ':active_job:' .. id)
    redis.call('SADD', keys[1] .. ':checkouts:' .. client, id)
    jobs[#jobs + 1] = redis.call('HGETALL', keys[1] .. ':active_job:' .. id)
  end
  redis.call('ZADD', keys[1] .. ':expiry', expiry, client)
  return jobs
end

local function cancel(keys, args)
  redis.call('DEL', keys[1] .. ':waiting_job:' .. args[1])
  return redis.call('ZREM', keys[1], args[1]) == 1
end

local function bump(keys, args)
  if not redis.call('ZSCORE', keys[1] .. ':expiry', args[1]) then
    return 0
  end
  redis.call('ZADD', keys[1] .. ':expiry', args[3], args[1])
  return 1
end

local function finish(keys, args)
  local id = args[1]
  redis.call('SREM', keys[1] .. ':checkouts:' .. args[2], id)
  redis.call('DEL', keys[1] .. ':active_job:' .. id)
  local score = redis.call('ZSCORE', keys[1], id)
  if score and score.double < 0 then
    redis.call('ZADD', keys[1], -score.double, id)
  end
  return redis.status_reply('OK')
end

local function retry(keys, args)
  local id = args[1]
  redis.call('SREM', keys[1] .. ':checkouts:' .. args[2], id)
  redis.call('HINCRBY', keys[1] .. ':active_job:' .. id, 'retry_count', 1)
  redis.call('RENAME', keys[1] .. ':active_job:' .. id, keys[1] .. ':waiting_job:' .. id)
  redis.call('ZADD', keys[1], args[3], id)
  return redis.status_reply('OK')
end

local function fail(keys, args)
  add(keys[2], args[3], 0, args[4])
  return finish(keys, args)
end

local function version()
  return VERSION
end

local function register(name, callback)
  redis.register_function('queasy_' .. name, function(keys, args)
    redis.setresp(3)
    return callback(keys, args)
  end)
end

register('dispatch', dispatch)
register('dequeue', dequeue)
register('cancel', cancel)
register('bump', bump)
register('finish', finish)
register('retry', retry)
register('fail', fail)
register('version', version)
"""


def stub_source(version: int = 1) -> str:
    return SOURCE.replace("VERSION", str(version))
