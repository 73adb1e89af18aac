/**
 * Life in a Node process: worker threads that come and go, processes that end while they compute, thousands of calls at
 * once, arrays that are changed or taken away meanwhile, and memory that runs out. Each runs in a process of its own,
 * as what would go wrong would end it.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { play, playsWell } from './support.js';

const GIB = 2 ** 30;

/** What the machine could still give, in bytes; 0 where it does not say. */
function availableMemory(): number {
  try {
    return 1024 * Number(/^MemAvailable:\s*(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}

describe('life', function () {
  this.timeout(400_000);

  describe('worker threads of one addon, half of them terminated in the midst of calls', () => {
    for (const kind of ['async', 'sync'])
      for (const where of ['main', 'workers'])
        it(`${kind} calls, ${where === 'main' ? 'the main thread having it too' : 'workers alone having it'}`, () =>
          playsWell('workers', ['6', kind, ...(where === 'main' ? ['main'] : [])]));
  });

  describe('a process that ends with work in flight', () => {
    const endings: [how: string, code: number | null, signal: string | null][] = [
      ['exit', 7, null],
      ['throw', 1, null],
      ['kill', null, 'SIGTERM'],
      ['worker', 7, null],
      ['end', 7, null],
    ];
    for (const [how, code, signal] of endings)
      it(`by ${how}, at several times`, async () => {
        for (const wait of [0, 1, 3, 10, 30]) {
          const ended = await play('exit', [how, String(wait)]);
          assert.deepEqual(
            { code: ended.code, signal: ended.signal },
            { code, signal },
            `${wait} ms: ${ended.stderr}`,
          );
          if (how === 'end') assert.match(ended.stdout, /22 done/);
        }
      });
  });

  it('thousands of calls at once take bounded memory, and no threads of their own', async () => {
    await playsWell('crowd');
  });

  describe('arrays that meanwhile are', () => {
    it('changed', () => playsWell('memory', ['changed']));
    it('masked otherwise', () => playsWell('memory', ['masked']));
    it('given other offsets, which do not count any more', () => playsWell('memory', ['offsets']));
    it('given other groups, which do not count any more', () => playsWell('memory', ['groups']));
    it('shrunk, as resizable ones can be', () => playsWell('memory', ['shrunk']));
    describe('given away', () => {
      before(function () {
        // The memory is not kept there: SECURITY.md.
        if (process.platform === 'win32') this.skip();
      });
      it('and forgotten', () => playsWell('memory', ['transferred']));
      it('to a worker that ends', () => playsWell('memory', ['sent away']));
    });
  });

  it('memory that runs out is ERR_OUT_OF_MEMORY, and the process goes on', async function () {
    // Elsewhere nothing can be taken from a process that runs.
    if (process.platform !== 'linux') this.skip();
    if (availableMemory() < 4 * GIB) this.skip();
    assert.match(await playsWell('poverty'), /went on/);
  });

  it('more than 2³¹ tokens are computed, where the machine has the memory (10 GiB)', async function () {
    if (availableMemory() < 10 * GIB) this.skip();
    assert.match(await playsWell('huge'), /2149580800 tokens/);
  });
});
