// /// script
// dependencies = ["bullmq@6.7.0", "ioredis@6.0.0"]
// [tool.bench]
// name = "BullMQ (Node)"
// promise = "at least once"
// settings = "concurrency 200 (1 for CPU), finished jobs removed, addBulk of 1,000"
// jobs = 30000
// enqueues = 10000
// burst = 15000
// [tool.bench.unsupported]
// sleep = "Node has no threads for functions"
// ///
// BullMQ for Node, with the verbs of kit.py.

import { fork } from 'node:child_process';
import { appendFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

// Node searches for packages beside the script; these are in an environment of their own.
const require = createRequire(
  new URL('../.environments/bullmq-node/node_modules/', import.meta.url),
);
const { Queue, Worker } = require('bullmq');

const url = new URL(process.env.BENCH_URL);
const folder = process.env.BENCH_FOLDER;
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const noTrace = { removeOnComplete: true, removeOnFail: true };
const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of time.monotonic()
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

// Jobs done, start of the first, end of the last. Written every 10 ms, because Node has no mmap.
const tally = new Float64Array(3);
let written = 0;
function write() {
  if (tally[0] === written) return;
  writeFileSync(`${folder}/tally-${process.pid}`, new Uint8Array(tally.buffer));
  written = tally[0];
}
function count(started) {
  if (!tally[0]) tally[1] = started;
  tally[2] = now();
  tally[0] += 1;
}
const handlers = {
  noop: () => count(now()),
  plain: () => count(now()),
  stamp: (sent) => appendFileSync(`${folder}/pickup-${process.pid}`, `${now() - sent}\n`),
  burn(milliseconds) {
    const started = now();
    const { user, system } = process.cpuUsage();
    const until = user + system + milliseconds * 1000;
    for (let used = 0; used < until; ) {
      const cpu = process.cpuUsage();
      used = cpu.user + cpu.system;
    }
    count(started);
    write();
  },
};

function work(processes, kind) {
  for (let child = 1; child < processes; child++) {
    fork(process.argv[1], ['worker', '1', kind]);
  }
  const process_ = async (job) => handlers[job.name](job.data.argument);
  const concurrency = Number(process.env.BENCH_CONCURRENCY || (kind === 'cpu' ? 1 : 200));
  new Worker('bench', process_, { connection, concurrency, ...noTrace });
  setInterval(write, 10);
  process.on('disconnect', () => process.exit());
}

const producers = {
  async bulk(queue, name, values, opts = noTrace) {
    const jobs = values.map((argument) => ({ name, data: { argument }, opts }));
    for (let start = 0; start < jobs.length; start += 1000) {
      await queue.addBulk(jobs.slice(start, start + 1000));
    }
  },
  async single(queue, name, values) {
    for (const argument of values) await queue.add(name, { argument }, noTrace);
  },
  async concurrent(queue, name, values) {
    const rest = values[Symbol.iterator]();
    const lane = async () => {
      for (let next = rest.next(); !next.done; next = rest.next()) {
        await queue.add(name, { argument: next.value }, noTrace);
      }
    };
    await Promise.all(Array.from({ length: 100 }, lane));
  },
};

async function produce(verb, rest) {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  if (verb === 'pickup') {
    for (let sent = 0; sent < Number(rest[0]); sent++) {
      await sleep(0.01 + Math.random() * 0.03);
      await queue.add('stamp', { argument: now() }, noTrace);
    }
    return { seconds: 0, jobs: Number(rest[0]) };
  }
  if (verb === 'schedule') {
    const values = Array(Number(rest[0])).fill('x'.repeat(100));
    const began = now();
    for (let start = 0; start < values.length; start += 500) {
      const delay = Math.round(Number(rest[1]) * 1000 - Date.now());
      await producers.bulk(queue, 'noop', values.slice(start, start + 500), { ...noTrace, delay });
    }
    return { seconds: now() - began, jobs: values.length };
  }
  const [job, text, size] = rest;
  const argument = job === 'burn' ? Number(size) : 'x'.repeat(Number(size));
  const warm = job === 'noop' || job === 'plain' ? 100 : 0;
  await producers[verb](queue, job, Array(warm).fill(argument));
  const began = now();
  await producers[verb](queue, job, Array(Number(text)).fill(argument));
  return { seconds: now() - began, jobs: Number(text) + warm };
}

const [verb, ...rest] = process.argv.slice(2);
if (verb === 'worker') {
  work(Number(rest[0]), rest[1]);
} else {
  console.log(JSON.stringify(await produce(verb, rest)));
  process.exit(0);
}
