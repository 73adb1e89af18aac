// Times PPO with an entropy bonus from hidden states, with the gradients of the hidden states and of the output head's
// weight, in turns with PyTorch, which keeps all logits in memory. Compares the results first.
//
//   npx tsx bench/hidden.ts [--shape 512x1024x32000] [--rounds 5] [--no-torch] [--python PATH]
//
// The shape is tokens × the length of a hidden state × the size of the vocabulary.
import { parseArgs } from 'node:util';
import { ALGORITHM_TYPE } from '../lib/index.js';
import { checkAgreement } from './lib/agreement.js';
import { describeMachine } from './lib/machine.js';
import { contender, race } from './lib/race.js';
import { mediansOf, shapeText } from './lib/ratios.js';
import { OURS } from './lib/report.js';
import { digits, print, spread } from './lib/tables.js';
import { Torch } from './peers/torch.js';

const { values: flags } = parseArgs({
  options: {
    shape: { type: 'string', default: '512x1024x32000' },
    rounds: { type: 'string', default: '5' },
    'no-torch': { type: 'boolean', default: false },
    python: { type: 'string' },
  },
});
const shape = flags.shape.split('x').map(Number);
const [tokens, size, vocabulary] = shape as [number, number, number];
if (shape.length !== 3 || !shape.every((n) => Number.isInteger(n) && n > 0))
  throw new Error(`--shape: expected TOKENSxSIZExVOCABULARY, got ${flags.shape}`);
const ENTROPY_COEF = 0.01;

const wave = (length: number, scale: number, step: number) =>
  Float32Array.from({ length }, (_, i) => scale * Math.sin(i * step + (i % 7)));
const hidden = wave(tokens * size, 1, 12.9898);
const weight = wave(vocabulary * size, 3 / Math.sqrt(size), 78.233);
const targets = Int32Array.from({ length: tokens }, (_, i) => (i * 7919) % vocabulary);
const objective = ALGORITHM_TYPE.get('grpo').objective({
  kl_loss_fn: 'none',
  entropy_loss_fn_args: { entropy_coef: ENTROPY_COEF },
});
const columns = {
  shape: [tokens, 1] as const,
  ...{ hidden, weight, targets },
  advantages: wave(tokens, 1, 1.3),
  actionMask: new Uint8Array(tokens).fill(1),
};
const { logprob } = await objective.fromHidden({ ...columns, oldLogprob: new Float32Array(tokens) });
const batch = { ...columns, oldLogprob: logprob.map((x, i) => x + 0.1 * Math.sin(i)) };
const gradHidden = new Float32Array(hidden.length);
const gradWeight = new Float32Array(weight.length);
const compute = () => objective.fromHidden(batch, { gradHidden, gradWeight });

const { cpu, threads, isa, node } = describeMachine();
const torch = flags['no-torch']
  ? undefined
  : await Torch.start({ device: 'cpu', python: flags.python, busy: false });
const version = torch?.about.version ?? 'absent';
console.log(`${cpu}, ${threads} threads, ${isa}; Node ${node}; PyTorch ${version}`);
try {
  const prepared = torch ? await prepareTorch(torch) : [];
  const times = await race([contender(OURS, compute), ...prepared], Number(flags.rounds));
  const { ours } = mediansOf(times);
  print({
    title: `PPO from hidden states, ${shapeText(shape)}, with both gradients`,
    head: ['', 'ms', 'min – max', '÷ ours'],
    rows: Object.entries(times).map(([name, sample]) => [
      name,
      digits(sample.median),
      spread(sample),
      digits(sample.median / ours),
    ]),
  });
} finally {
  torch?.end();
}

async function prepareTorch(torch: Torch) {
  await torch.loadTensors(
    {
      hidden: { values: hidden, shape: [tokens, size] },
      weight: { values: weight, shape: [vocabulary, size] },
      targets: { values: targets, shape: [tokens] },
      old_logprob: { values: batch.oldLogprob, shape: [tokens] },
      advantages: { values: batch.advantages, shape: [tokens] },
      action_mask: { values: batch.actionMask, shape: [tokens] },
      expert_mask: { values: new Uint8Array(tokens), shape: [tokens] },
    },
    0,
    threads,
  );
  const args = { entropy_coef: ENTROPY_COEF };
  const wrt = ['hidden', 'weight'];
  // Both gradients are read as arrays of one length, with zeros at the end.
  const length = Math.max(hidden.length, weight.length);
  const loss = { id: 'PPO from hidden states', family: 'hidden', name: 'ppo', args, wrt } as const;
  const { prepared, problems } = await torch.prepare(loss, length);
  for (const [form, problem] of Object.entries(problems)) console.log(`${form} is not measured: ${problem}`);
  const { loss: expected } = await compute();
  const gradients = [gradHidden, gradWeight].map((gradient) => {
    const padded = new Float32Array(length);
    padded.set(gradient);
    return padded;
  });
  for (const { name, evaluate } of prepared)
    checkAgreement(name, await evaluate(), { loss: expected, metrics: {}, gradients });
  return prepared;
}
