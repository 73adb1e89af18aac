/** Makes the files that the code of README.md and docs reads: those of the package, and those that readers bring. */
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { Fields } from '../fuzz-files/fields.js';
import { F32, I64, npy, safetensorsOf } from '../fuzz-files/tensor-files.js';
import { ROWS } from '../tools/cli/support.js';
import { ROOT } from './fences.js';

/** The dumps of trainers in the pages, and the fixtures that stand for them. */
const DUMPS: Record<string, string> = {
  'train_data/2.pt': 'slime/train_data/2.pt',
  'token_exports/step_3': 'prime-rl/token_exports/step_3',
  'batch_step_5.pkl': 'verl/batch_step_5.pkl',
  'batch.pkl': 'skyrl/dumped_data/global_step_7_training_input.pkl',
  dumps: 'verl',
};

const [B, T, V] = [2, 3, 50];
const LOGITS = Float32Array.from({ length: B * T * V }, (_, i) => 3 * Math.sin(i * i));
const TENSORS = {
  logits: { name: 'logits', shape: [B, T, V], dtype: F32, data: Buffer.from(LOGITS.buffer) },
  targets: {
    name: 'targets',
    shape: [B, T],
    dtype: I64,
    data: Buffer.from(new BigInt64Array(B * T).fill(7n).buffer),
  },
};

/** The columns of a step of a trainer that computes log-probabilities a second time. */
const STEP = ROWS.map((row) => ({
  ...row,
  uid: `${row.task_id}/${row.run_id}`,
  rollout_logprobs: row.old_logprobs.map((x, i) => x + 0.01 * Math.cos(i)),
  generation_logprobs: row.old_logprobs,
}));

/** Makes a folder with the files. */
export function makeFiles(folder: string): void {
  const write = (name: string, content: string | Buffer) => {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), content);
  };
  const examples = join(folder, 'node_modules/policy-loss/examples');
  cpSync(join(ROOT, 'examples'), examples, {
    recursive: true,
    filter: (file) => basename(file) !== 'models',
  });
  const fixtures = join(ROOT, 'test/tools/rollouts/fixtures/dumps');
  for (const [name, dump] of Object.entries(DUMPS))
    cpSync(join(fixtures, dump), join(folder, name), { recursive: true });
  const step = STEP.map((row) => JSON.stringify(row)).join('\n');
  for (const name of ['rollouts', 'yesterday', 'today', 'train_data/step_7/rank_0', 'trinity/0', 'verl/0'])
    write(`${name}.jsonl`, step);
  cpSync(join(examples, 'trinity.yaml'), join(folder, 'config.yaml'));
  write(
    'verl.yaml',
    '{ algorithm: { adv_estimator: grpo }, actor_rollout_ref: { actor: { clip_ratio: 0.3 } } }',
  );
  write('grpo-config.json', '{ "epsilon": 0.3, "beta": 0 }');
  write('step7.safetensors', Buffer.concat(safetensorsOf(Object.values(TENSORS), new Fields())));
  for (const name of ['logits.npy', 'teacher.npy'])
    write(name, Buffer.concat(npy(TENSORS.logits, new Fields())));
  write('tokens.npy', Buffer.concat(npy(TENSORS.targets, new Fields())));
}
