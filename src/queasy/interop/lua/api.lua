-- The registered functions of the dialects. Each parses its arguments and calls one module. The
-- header of each lists its keys, arguments, reply and writes. Durations are milliseconds.

local whole, ids_from = arguments.whole, arguments.ids_from

local API = {}

local VERSION = { 1, 1 } -- protocol, revision: a loader never replaces a higher revision

local MAX_LEASE_MS = 24 * 3600 * 1000
local MAX_OFFSET = 2 ^ 40

-- All functions of redis-work-queue have the keys <prefix>:queue and <prefix>:processing. They also
-- use <prefix>:item:<id>, and <prefix>:lease:<id> or <prefix>:leased_by_session:<id>.

-- workqueue_add: add an item unless there is one with this id.
--   keys   queue, processing
--   args   id, data
--   reply  1 (added) | 0 (there is one)
--   writes its data, queue
function API.workqueue_add(keys, argv)
  return workqueue.add(workqueue.open(keys), argv[1], argv[2])
end

-- workqueue_take: lease the oldest item that has data and no lease, and drop ids without data.
--   keys   queue, processing
--   args   layout (document, published: how the lease key is called), session, lease
--   reply  { 'taken', id, data } | { 'empty' } | { 'more' } (many ids were dropped: call again)
--   writes queue, processing, its lease
function API.workqueue_take(keys, argv)
  local ms = whole(argv[3], 'the lease', 1, MAX_LEASE_MS)
  return workqueue.take(workqueue.open(keys), argv[1], argv[2], ms)
end

-- workqueue_finish: complete an item.
--   keys   queue, processing
--   args   layout (which completion counts as the first), id
--   reply  1 (this call was the first) | 0
--   writes its data, its lease, processing, queue
function API.workqueue_finish(keys, argv)
  return workqueue.finish(workqueue.open(keys), argv[1], argv[2])
end

-- workqueue_extend: let a lease end so many milliseconds from now.
--   keys   queue, processing
--   args   id, session, lease
--   reply  1 | 0 (the lease is over)
--   writes its lease
function API.workqueue_extend(keys, argv)
  local ms = whole(argv[3], 'the lease', 1, MAX_LEASE_MS)
  return workqueue.extend(workqueue.open(keys), argv[1], argv[2], ms)
end

-- workqueue_put_back: end a lease, and put the item back into the queue.
--   keys   queue, processing
--   args   id, session, front or back
--   reply  1 | 0 (the lease is over)
--   writes its lease, processing, queue
function API.workqueue_put_back(keys, argv)
  return workqueue.put_back(workqueue.open(keys), argv[1], argv[2], argv[3])
end

-- workqueue_undo: put back to the front what a session took.
--   keys   queue, processing
--   args   session
--   reply  how many items
--   writes leases, processing, queue
function API.workqueue_undo(keys, argv)
  return workqueue.undo(workqueue.open(keys), argv[1])
end

-- workqueue_unleased: the items without a lease in a page of the processing list.
--   keys   queue, processing
--   args   offset from the right end
--   reply  { how many ids the page has, { id ... } }
--   writes nothing
function API.workqueue_unleased(keys, argv)
  return workqueue.unleased(workqueue.open(keys), whole(argv[1], 'the offset', 0, MAX_OFFSET))
end

-- workqueue_queued: a page of the queue.
--   keys   queue, processing
--   args   offset from the right end
--   reply  { id ... }
--   writes nothing
function API.workqueue_queued(keys, argv)
  return workqueue.page(workqueue.open(keys).queue, whole(argv[1], 'the offset', 0, MAX_OFFSET))
end

-- workqueue_scan: one step of SCAN: the items without a lease that it met.
--   keys   queue, processing
--   args   cursor
--   reply  { next cursor ('0': the end), { id ... } }
--   writes nothing
function API.workqueue_scan(keys, argv)
  return workqueue.scan(workqueue.open(keys), argv[1])
end

-- workqueue_restore: return items to the queue that have data and no lease, and are not in it.
--   keys   queue, processing
--   args   id ...
--   reply  { how many it returned, how many of the ids it looked at: pass the others again }
--   writes processing, queue, cleaning
function API.workqueue_restore(keys, argv)
  return workqueue.restore(workqueue.open(keys), ids_from(argv, 1))
end

-- workqueue_counts: the lengths of both lists.
--   keys   queue, processing
--   args   none
--   reply  { in the queue, in processing }
--   writes nothing
function API.workqueue_counts(keys)
  local q = workqueue.open(keys)
  return { redis.call('LLEN', q.queue), redis.call('LLEN', q.processing) }
end

-- node_counts: how many jobs a queue of Queasy for Node has.
--   keys   {queue}
--   args   none
--   reply  { waiting, blocked, active }; it counts the active jobs of up to 10,000 clients
--   writes nothing
function API.node_counts(keys)
  return node_counts.counts(keys[1])
end

-- version: the protocol and the revision of this library.
--   keys   none
--   args   none
--   reply  { protocol, revision }
--   writes nothing
function API.version()
  return VERSION
end

local function register(name, callback, ...)
  redis.register_function({
    function_name = 'queasy_interop_v1_' .. name, callback = callback, flags = { ... },
  })
end

-- A server whose memory is full refuses new items. All that drains it still works.
register('workqueue_add', API.workqueue_add)
register('workqueue_take', API.workqueue_take, 'allow-oom')
register('workqueue_finish', API.workqueue_finish, 'allow-oom')
register('workqueue_extend', API.workqueue_extend, 'allow-oom')
register('workqueue_put_back', API.workqueue_put_back, 'allow-oom')
register('workqueue_undo', API.workqueue_undo, 'allow-oom')
register('workqueue_restore', API.workqueue_restore, 'allow-oom')
register('workqueue_unleased', API.workqueue_unleased, 'no-writes')
register('workqueue_queued', API.workqueue_queued, 'no-writes')
register('workqueue_scan', API.workqueue_scan, 'no-writes')
register('workqueue_counts', API.workqueue_counts, 'no-writes')
register('node_counts', API.node_counts, 'no-writes')
register('version', API.version, 'no-writes')
-- The server refuses an older revision that would register a name of a newer one's fence.
register('revision_' .. VERSION[2], API.version, 'no-writes')
