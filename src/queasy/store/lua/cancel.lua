-- Cancelling jobs that wait, dispatches that are held, and runs.

local many, channel = keys.many, keys.channel
local count = stats.count
local new_batch = batch.new
local read_active, load_waiting = job.read_active, job.load_waiting
local lease_of = client.lease_of
local keep_call = idempotency.keep_call

-- Ends the wait of jobs, and drops dispatches held behind a run. With `running`, a run in
-- progress is asked to stop: the request stands in the server until the run has ended.
local function cancel(q, ids, running, call)
  local jobs = load_waiting(q, ids)
  local infos = many('HMGET', q.info, ids)
  local helds = many('HMGET', q.blocked, ids)
  local batch, replies, told = new_batch(), {}, {}
  for i, id in ipairs(ids) do
    local job = jobs[id]
    local status = 'absent'
    if job.done then
      status = 'absent'
    elseif job.score then
      batch:rem(q.waiting, id, job.score)
      if infos[i] then
        batch:del(q.info, id, infos[i])
      end
      batch:del_last(q.data, id)
      count(q, 'cancelled')
      status = 'cancelled'
    elseif job.active then
      status = 'active'
      if helds[i] then
        batch:del(q.blocked, id, helds[i])
        status = 'cancelled'
      end
      if running then
        local token, _, client, cancelled = read_active(job.active)
        if client and not cancelled then
          batch:set(q.active, id, job.active .. ':cancel', job.active)
          batch:add(q.cancels, lease_of(client, id), 0)
          told[#told + 1] = { client, 'cancel:' .. token .. ':' .. id }
        end
        status = client and 'requested' or status
      end
    end
    job.done = true
    replies[i] = status
  end
  keep_call(q, batch, call, replies)
  batch:commit(q)
  for _, message in ipairs(told) do -- best effort: a bump delivers the request as well
    redis.pcall('SPUBLISH', channel(q, message[1]), message[2])
  end
  return replies
end

return {
  cancel = cancel,
}
