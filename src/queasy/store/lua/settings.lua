-- The settings of a queue.

local refuse = keys.refuse
local new_batch = batch.new
local unpack_table, are_options = job.unpack_table, job.are_options
local count_arg = arguments.count_arg
local wake_for_all_due = waking.wake_for_all_due
local trim = records.trim

local NAMED = { 'limits', 'fail_handler', 'failed_limit', 'broken_limit', 'paused' }

-- Writes the settings in argv[2] to argv[6], in the order of NAMED; '' leaves a setting as it is.
local function configure(q, argv)
  local batch = new_batch()
  if argv[2] ~= '' and not are_options(unpack_table(argv[2])) then
    refuse('expected limits as a map of options with numbers')
  end
  for i, name in ipairs(NAMED) do
    local value = argv[i + 1]
    if value ~= '' then
      if i > 1 then
        count_arg(value, name)
      end
      batch:set(q.meta, name, value, redis.call('HGET', q.meta, name))
    end
  end
  for i, kind in ipairs({ 'failed', 'broken' }) do
    if argv[i + 3] ~= '' then
      trim(q, batch, kind, tonumber(argv[i + 3]), 0, {})
    end
  end
  batch:commit(q)
  if argv[6] == '0' then
    q.paused = false
    wake_for_all_due(q)
  end
  return 'ok'
end

return {
  configure = configure,
}
