// Times small calls of PPO, and for how long large ones block the event loop.
import { makeInputs } from './batch.js';
import { LARGE, ownWorks, SMALL } from './functions.js';
import { contender, race, syncContender } from './race.js';
import type { Times } from './report.js';
import { gradientsOf } from './works.js';

/** Times calls of PPO with its gradient. The keys describe the calls. */
export function timeCalls(rounds: number): Promise<Times> {
  const [ppo] = ownWorks(/^ppo$/);
  const [small, large] = [makeInputs(SMALL), makeInputs(LARGE)];
  const [smallGradient, largeGradient] = [gradientsOf(ppo!, SMALL), gradientsOf(ppo!, LARGE)];
  return race(
    [
      syncContender(`computeSync(), ${SMALL.join('×')}`, () => ppo!.computeSync(small, smallGradient)),
      contender(`compute(), ${SMALL.join('×')}, awaited`, () => ppo!.compute(small, smallGradient)),
      contender(
        `compute() into an array, ${LARGE.join('×')}, until it returns`,
        () => ppo!.compute(large, largeGradient),
        'promise',
      ),
      contender(
        `compute() with grad: true, ${LARGE.join('×')}, until it returns`,
        () => ppo!.compute(large, { grad: true }),
        'promise',
      ),
    ],
    rounds,
  );
}
