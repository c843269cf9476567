-- The settings of a queue.

local refuse = keys.refuse
local new_batch = batch.new
local unpack_table, check_options = job.unpack_table, job.check_options
local count_arg = arguments.count_arg
local wake_for_all_due = waking.wake_for_all_due
local trim = records.trim

local function flag_text(value, name)
  if type(value) ~= 'boolean' then
    refuse('expected true or false for ' .. name)
  end
  return value and '1' or '0'
end

local function count_text(value, name)
  return string.format('%.0f', count_arg(value, name))
end

local function options_text(value)
  return cmsgpack.pack(check_options(value))
end

-- For each setting: the text that is stored, or a refusal.
local TEXT = {
  limits = options_text, fail_handler = flag_text, failed_limit = count_text,
  broken_limit = count_text, paused = flag_text,
}

-- Writes the settings in a packed map. Those that are not in it stay as they are.
local function configure(q, packed)
  local given = unpack_table(packed) or refuse('expected the settings as a packed map')
  local batch = new_batch()
  for name, value in pairs(given) do
    local text_of = TEXT[name] or refuse('unknown setting: ' .. tostring(name))
    batch:set(q.meta, name, text_of(value, name), redis.call('HGET', q.meta, name))
  end
  for _, kind in ipairs({ 'failed', 'broken' }) do
    local limit = given[kind .. '_limit']
    if limit then
      trim(q, batch, kind, limit, 0, {})
    end
  end
  batch:commit(q)
  if given.paused == false then
    q.paused = false
    wake_for_all_due(q)
  end
  return 'ok'
end

return {
  configure = configure,
}
