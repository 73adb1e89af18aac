// Times functions, forward and gradient, in turns with their traffic floor and with PyTorch.
import * as policyLoss from '../../lib/index.js';
import type { Torch } from '../peers/torch.js';
import { checkAgreement, type Results } from './agreement.js';
import { type Inputs, makeInputs, type Shape, withCorners } from './batch.js';
import { floor } from './native.js';
import { contender, race, syncContender } from './race.js';
import { type FunctionTimes, OURS } from './report.js';
import { type Gradients, gradientLength, gradientsOf, type Work, works } from './works.js';

/**
 * The shapes of the timed batches. SMALL is timed through computeSync() on the thread that calls it, and LARGE through
 * compute() on all threads.
 */
export const SMALL: Shape = [8, 512];
export const LARGE: Shape = [1024, 4096];

/** Returns the functions of this package whose names match. */
export const ownWorks = (only: RegExp | undefined): Work[] => works(policyLoss, only);

/** Computes a function, and returns the results for a comparison with another implementation. */
export function resultsOf(work: Work, batch: Parameters<Work['computeSync']>[0], shape: Shape): Results {
  const gradients = gradientsOf(work, shape);
  const { loss, metrics } = work.computeSync(batch, gradients);
  return { loss, metrics, gradients: Object.values(gradients) };
}

/**
 * Checks that PyTorch's results agree with this package's in every form. The batch has masked tokens and extreme ratios,
 * which the timed batches do not have.
 * @throws Error if they do not agree.
 */
export async function checkTorch(list: readonly Work[], torch: Torch, shape: Shape): Promise<void> {
  const inputs = withCorners(makeInputs(shape));
  await torch.load(inputs, 1);
  for (const work of list.filter((each) => torch.covers(each))) {
    const expected = resultsOf(work, inputs, shape);
    const { prepared, problems } = await torch.prepare(work, gradientLength(work, shape));
    for (const [form, problem] of Object.entries(problems))
      console.log(`${work.id}: ${form} is not compared: ${problem}`);
    for (const { name, evaluate } of prepared)
      checkAgreement(`${name}, ${work.id} with masked tokens`, await evaluate(), expected);
    await torch.release();
  }
}

/** Times a function on a batch that PyTorch has loaded. Compares PyTorch's results before it is timed. */
export async function timeFunction(
  work: Work,
  inputs: Inputs,
  torch: Torch | undefined,
  rounds: number,
): Promise<FunctionTimes> {
  const { shape } = inputs;
  const gradients = gradientsOf(work, shape);
  const { prepared, problems } = torch?.covers(work)
    ? await torch.prepare(work, gradientLength(work, shape))
    : { prepared: [], problems: {} };
  const expected = resultsOf(work, inputs, shape);
  for (const { name, evaluate } of prepared)
    checkAgreement(`${name}, ${work.id} on ${shape.join('×')}`, await evaluate(), expected);
  const ours = shape === SMALL ? [small(work, inputs, gradients)] : large(work, inputs, gradients);
  const times = await race([...ours, ...prepared], rounds);
  await torch?.release();
  return { id: work.id, shape, times, problems };
}

// Only comparisons with PyTorch need the keys. Users let clip_cov draw its tokens.
const usual = ({ clipCovKeys: _, ...batch }: Inputs) => batch;

// The traffic floor can only be measured asynchronously, so small batches have none.
function small(work: Work, inputs: Inputs, gradients: Gradients) {
  const batch = usual(inputs);
  return syncContender(OURS, () => work.computeSync(batch, gradients));
}

function large(work: Work, inputs: Inputs, gradients: Gradients) {
  const batch = usual(inputs);
  const ours = contender(OURS, () => work.compute(batch, gradients));
  // Losses of rewards read no tokens.
  return work.family === 'reward' ? [ours] : [ours, floor(work, inputs, gradients)];
}
