-- Cancelling waiting jobs, held dispatches, and runs.

local in_chunks, channel_of = keys.in_chunks, keys.channel_of
local count = stats.count
local new_batch = batch.new
local read_active, load_waiting = job.read_active, job.load_waiting
local lease_name = client.lease_name
local record_call = idempotency.record_call

-- Removes waiting jobs, and dispatches that are held until a run ends. With `running`, it also
-- requests that runs stop: the request stays in the server until the run has ended.
local function cancel(q, ids, running, call)
  local jobs = load_waiting(q, ids)
  local infos = in_chunks('HMGET', q.info, ids)
  local helds = in_chunks('HMGET', q.blocked, ids)
  local batch, replies, notices = new_batch(), {}, {}
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
      batch:del_unread(q.data, id)
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
          batch:add(q.cancels, lease_name(client, id), 0)
          notices[#notices + 1] = { client, 'cancel:' .. token .. ':' .. id }
        end
        status = client and 'requested' or status
      end
    end
    job.done = true
    replies[i] = status
  end
  record_call(q, batch, call, replies)
  batch:commit(q)
  for _, message in ipairs(notices) do -- best effort: the next bump delivers the request too
    redis.pcall('SPUBLISH', channel_of(q, message[1]), message[2])
  end
  return replies
end

return {
  cancel = cancel,
}
