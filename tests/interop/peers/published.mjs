// The roles of a peer, with the package @mevitae/redis-work-queue.
import { createRequire } from 'node:module';

// Packages are installed in another folder than this file. The package names a TypeScript file as
// its main file, which node cannot load, so this names the compiled one.
const require = createRequire(process.env.PACKAGES + '/');
const { Redis } = require('ioredis');
const { Item, KeyPrefix, WorkQueue } = require('@mevitae/redis-work-queue/dist/WorkQueue.js');

const LEASE_SECONDS = 1;
const [socket, prefix, role, name, count] = process.argv.slice(2);
const db = new Redis(socket);
const queue = new WorkQueue(new KeyPrefix(prefix));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function work() {
  for (;;) {
    const item = await queue.lease(db, LEASE_SECONDS, true, 1);
    if (item === null) continue;
    if (item.data.length === 0) { // it was completed before: this package gives it out all the same
      await queue.complete(db, item);
      continue;
    }
    await db.hset(`${prefix}-holding`, name, item.id);
    await pause(5);
    await db.sadd(`${prefix}-done`, item.id);
    if (await queue.complete(db, item)) await db.hincrby(`${prefix}-completed`, item.id, 1);
    await db.hdel(`${prefix}-holding`, name);
  }
}

const roles = {
  async add() {
    for (let n = 0; n < Number(count); n++) {
      await queue.addItem(db, new Item(`data of ${name}-${n}`, `${name}-${n}`));
    }
  },
  work,
  async hold() {
    const item = await queue.lease(db, LEASE_SECONDS, true, 0);
    console.log(item.id);
    await pause(3_600_000);
  },
  async show() {
    const item = await queue.lease(db, 60, true, 20);
    const done = [await queue.complete(db, item), await queue.complete(db, item)];
    console.log(JSON.stringify({ id: item.id, data: item.data.toString('hex'), done }));
  },
  async clean() {
    for (;;) {
      await queue.lightClean(db);
      await pause(50);
    }
  },
};
await roles[role]();
process.exit(0);
