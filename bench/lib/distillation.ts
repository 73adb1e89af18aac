// Times the distillation loss of verl from logits, in turns with a loop that moves the same memory and with PyTorch.
import { LOGITS_LOSS_FN } from '../../lib/index.js';
import type { Torch } from '../peers/torch.js';
import { checkAgreement } from './agreement.js';
import { benchNative } from './native.js';
import { contender, race } from './race.js';
import { type FunctionTimes, OF_LOGITS, OURS } from './report.js';

const SHAPE = [512, 32_000] as const;
const [TOKENS, VOCABULARY] = SHAPE;
/** The length of the teacher's list of a token. */
const K = 32;
const NAME = 'verl/distill_topk';

export async function timeDistillation(
  torch: Torch | undefined,
  threads: number,
  rounds: number,
): Promise<FunctionTimes> {
  const id = `${NAME} from logits, k = ${K}`;
  const { logits, ids, logprobs } = drawn();
  const actionMask = new Uint8Array(TOKENS).fill(1);
  const batch = {
    ...{ shape: [TOKENS / 64, 64] as const, logits, actionMask },
    ...{ teacherTopkIds: ids, teacherTopkLogprobs: logprobs },
  };
  await torch?.loadTensors(
    {
      logits: { values: logits, shape: SHAPE },
      teacher_topk_ids: { values: ids, shape: [TOKENS, K] },
      teacher_topk_logprobs: { values: logprobs, shape: [TOKENS, K] },
      action_mask: { values: actionMask, shape: [TOKENS] },
      expert_mask: { values: new Uint8Array(TOKENS), shape: [TOKENS] },
    },
    0,
    threads,
  );
  const loss = { family: 'logits', name: NAME, args: {}, wrt: ['logits'] } as const;
  const { prepared, problems } = torch
    ? await torch.prepare(loss, logits.length)
    : { prepared: [], problems: {} };
  const fn = LOGITS_LOSS_FN.create(NAME);
  const gradLogits = new Float32Array(logits.length).fill(1);
  const compute = () => fn.compute(batch, { gradLogits });
  const results = { ...(await compute()), gradients: [gradLogits] };
  for (const { name, evaluate } of prepared) checkAgreement(`${name}, ${id}`, await evaluate(), results);
  const times = await race(
    [
      contender(OURS, compute),
      contender(OF_LOGITS.rewrite, () =>
        benchNative.memoryTraffic({ array: logits, writes: true, later: true }),
      ),
      ...prepared,
    ],
    rounds,
  );
  await torch?.release();
  return { id, shape: SHAPE, times, problems };
}

// The student gives most of its probability to the tokens of the teacher's list, in another order.
function drawn() {
  const logits = Float32Array.from(
    { length: TOKENS * VOCABULARY },
    (_, i) => 3 * Math.sin(i * 12.9898) + Math.cos(i * 0.01),
  );
  const ids = Int32Array.from({ length: TOKENS * K }, (_, i) => (i * 7919) % VOCABULARY);
  const logprobs = Float32Array.from(ids, (_, i) => -2 - 0.2 * (i % K));
  ids.forEach((id, i) => {
    logits[Math.floor(i / K) * VOCABULARY + id]! += 7 + 2 * Math.sin(i);
  });
  return { logits, ids, logprobs };
}
