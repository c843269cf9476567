// /// script
// [tool.crash]
// settings = "`concurrency: 10`, otherwise defaults (`maxStalledCount: 1`)"
// governs = "`lockDuration` (30 s), then two checks for stalled jobs (`stalledInterval`, 30 s)"
// restarts = "the benchmark, at once"
// ///
// BullMQ for Node, with the verbs and the job of crash_kit.py.

import { appendFileSync } from 'node:fs';
import { createRequire } from 'node:module';

// Node looks for packages beside the script; these are in an environment of their own.
const require = createRequire(
  new URL('../.environments/bullmq-node/node_modules/', import.meta.url),
);
const { Queue, Worker } = require('bullmq');

const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of time.monotonic()
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const note = (what, job) =>
  appendFileSync(
    `${process.env.BENCH_FOLDER}/events`,
    `${what} ${job} ${process.pid} ${now().toFixed(6)}\n`,
  );

async function run({ data: { id } }) {
  if (id === 'traffic') return;
  note('start', id);
  await sleep(1);
  note('end', id);
}

const [verb, ...rest] = process.argv.slice(2);
if (verb === 'worker') {
  new Worker('crash', run, { connection, concurrency: 10 });
} else {
  const queue = new Queue('crash', { connection });
  if (verb === 'send') {
    for (let number = 0; number < Number(rest[1]); number++) {
      await queue.add('job', { id: `${rest[0]}-${String(number).padStart(2, '0')}` });
    }
  } else {
    const until = now() + Number(rest[0]);
    while (now() < until) {
      await queue.add('job', { id: 'traffic' });
      await sleep(1 / Number(rest[1]));
    }
  }
  process.exit(0);
}
