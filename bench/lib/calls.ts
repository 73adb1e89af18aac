// Times small calls of PPO, and for how long large ones block the event loop.
import { makeInputs } from './batch.js';
import { LARGE, ownWorks, SMALL } from './functions.js';
import { type Contender, contender, race, syncContender } from './race.js';
import type { Times } from './report.js';
import { gradientsOf } from './works.js';

/** Times calls of PPO with its gradient. The keys describe the calls. */
export function timeCalls(rounds: number): Promise<Times> {
  const [ppo] = ownWorks(/^ppo$/);
  const tokensOf = (shape: readonly [number, number]) => shape[0] * shape[1];
  const [small, large] = [makeInputs(SMALL), makeInputs(LARGE)];
  const [smallGradient, largeGradient] = [
    gradientsOf(ppo!, tokensOf(SMALL)),
    gradientsOf(ppo!, tokensOf(LARGE)),
  ];
  return race(
    [
      syncContender(`computeSync(), ${SMALL.join('×')}`, () => ppo!.computeSync(small, smallGradient)),
      contender(`compute(), ${SMALL.join('×')}, awaited`, () => ppo!.compute(small, smallGradient)),
      untilPromise(`compute() into an array, ${LARGE.join('×')}, until it returns`, () =>
        ppo!.compute(large, largeGradient),
      ),
      untilPromise(`compute() with grad: true, ${LARGE.join('×')}, until it returns`, () =>
        ppo!.compute(large, { grad: true }),
      ),
    ],
    rounds,
  );
}

/** Returns a contender whose times end when a call returns its promise. */
function untilPromise(name: string, call: () => Promise<unknown>): Contender {
  return {
    name,
    async time(calls) {
      const times = new Array<number>(calls);
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        const result = call();
        times[i] = performance.now() - start;
        await result;
      }
      return times;
    },
  };
}
