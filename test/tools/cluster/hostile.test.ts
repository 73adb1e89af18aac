/** Tests that who can write to a queue, or poses as one, controls neither the terminal nor the memory of a submitter. */
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import type { QueueEvents } from 'bullmq';
import { RunWatch } from '../../../lib/tools/cluster/run-watch.js';
import type { Plan } from '../../../lib/tools/parts/index.js';
import { runProcess } from '../cli/support.js';

const RUN = '0123456789abcdef';
const HOSTILE = '\u001b]0;owned\u0007\u001b[2J';

describe('a hostile queue', () => {
  it('cannot report other results than counts, nor jobs that the run does not have', () => {
    const watch = new RunWatch(RUN, { shards: [{}, {}] } as unknown as Plan);
    const events = new EventEmitter();
    watch.listen(events as unknown as QueueEvents);
    const completed = (jobId: string, returnvalue: unknown) =>
      events.emit('completed', { jobId, returnvalue });
    completed(`${RUN}-count-0`, '{"rows":3,"tokens":5}');
    const progress = watch.progress(1);
    assert.deepEqual([progress.phase, progress.done, progress.rows, progress.tokens], ['count', 1, 3, 5]);
    for (const result of [
      ...[
        { rows: HOSTILE, tokens: 1 },
        { rows: 1, tokens: [HOSTILE] },
        { rows: -1, tokens: 1 },
      ],
      ...[{ rows: 0.5, tokens: 1 }, {}, null, undefined, HOSTILE, '{', 'null'],
    ])
      completed(`${RUN}-count-1`, result);
    for (const id of [
      ...[`${RUN}-count-2`, `${RUN}-count-01`, `${RUN}-count--1`, `${RUN}-count-`, `${RUN}-count-1-1`],
      ...[`${RUN}-${HOSTILE}-1`, `${RUN}-count-1e0`, `${RUN}-merge-1`],
    ])
      completed(id, { rows: 1, tokens: 1 });
    assert.deepEqual(watch.progress(1), progress);
  });

  it('has its replies printed with visible control characters', async () => {
    const server = createServer((socket) => {
      // Each command begins with the number of its words, and the length of the first.
      socket.on('data', (data) => {
        for (const [, command] of data.toString().matchAll(/\*\d+\r\n\$\d+\r\n(\w+)/g))
          socket.write(/^(info|ping)$/i.test(command!) ? `-NOPERM ${HOSTILE}\r\n` : '+OK\r\n');
      });
      socket.on('error', () => {});
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    try {
      const { port } = server.address() as AddressInfo;
      const queue = ['--queue', `redis://127.0.0.1:${port}`, '--parts', 'nowhere'];
      const { code, stderr } = await runProcess('cancel', RUN, ...queue);
      assert.equal(code, 1);
      // One line is of the library for Redis.
      assert.match(stderr, /^Skipping the ready check .*NOPERM \\u001b\]0;owned/m);
      assert.match(stderr, /^error: the queue .* got an error \(NOPERM \\u001b\]0;owned/m);
      assert.doesNotMatch(stderr, /(?!\n)\p{Cc}/u);
    } finally {
      server.close();
    }
  });
});
