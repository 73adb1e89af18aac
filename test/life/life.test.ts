/**
 * Tests what can happen in a Node process during calls: worker threads start and end, the process exits, thousands of
 * calls run at once, arrays are changed or dropped, memory runs out. Each scenario runs in a process of its own,
 * because a failure could crash it.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { play, playsWell } from './support.js';

const GIB = 2 ** 30;

/** Returns the machine's available memory in bytes, or 0 if the system does not report it. */
function availableMemory(): number {
  try {
    return 1024 * Number(/^MemAvailable:\s*(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}

describe('life', () => {
  describe('worker threads that share the module, half of them terminated during calls', () => {
    for (const kind of ['async', 'sync'])
      for (const where of ['main', 'workers'])
        it(`${kind} calls, ${where === 'main' ? 'with the module in the main thread too' : 'with the module in workers only'}`, () =>
          playsWell('workers', ['6', kind, ...(where === 'main' ? ['main'] : [])]));
  });

  describe('a process that ends during calls', () => {
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

  it('thousands of calls at once need little memory and no threads of their own', async () => {
    await playsWell('crowd');
  });

  it('thousands of user-defined losses leave no memory behind', async () => {
    await playsWell('losses');
  });

  describe('arrays that are changed during a call', () => {
    it('in their values', () => playsWell('memory', ['changed']));
    it('in the mask', () => playsWell('memory', ['masked']));
    it('in the mask and the values of a user-defined loss', () =>
      playsWell('memory', ['masked in a program']));
    it('in the offsets, without an effect', () => playsWell('memory', ['offsets']));
    it('in the group ids, without an effect', () => playsWell('memory', ['groups']));
    it('in the support of logits', () => playsWell('memory', ['support']));
    it('in their length, if they are resizable', () => playsWell('memory', ['shrunk']));
    it('not at all, but dropped before the garbage collector runs', () => playsWell('memory', ['dropped']));
  });

  it('calls without enough memory fail with ERR_OUT_OF_MEMORY, and the process goes on', async function () {
    // Only Linux can limit the memory of a running process.
    if (process.platform !== 'linux') this.skip();
    if (availableMemory() < 4 * GIB) this.skip();
    assert.match(await playsWell('poverty'), /went on/);
  });

  it('more than 2³¹ tokens are computed (needs 10 GiB of memory)', async function () {
    if (availableMemory() < 10 * GIB) this.skip();
    assert.match(await playsWell('huge'), /2149580800 tokens/);
  });
});
