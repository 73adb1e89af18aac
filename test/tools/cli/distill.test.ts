/** Tests `policy-loss distill`, which prints what the library computes. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { type InputName, inputRow } from '../../../lib/batch/columns.js';
import { LOGITS_LOSS_FN, LOSS_FN, type LogitsLossBatch } from '../../../lib/index.js';
import { LOGITS_INPUTS } from '../../../lib/logits/loss-inputs.js';
import { LOGITS_FILE_INPUTS } from '../../../lib/tools/parts/index.js';
import { openSafetensors } from '../../../lib/tools/rollouts/tensor/safetensors.js';
import { Fields } from '../../fuzz-files/fields.js';
import { F32, npy, safetensorsOf, type Tensor } from '../../fuzz-files/tensor-files.js';
import { layLogits, makeLogitsBatch } from '../../support/logits-losses.js';
import { tensorsOf } from '../../support/logits-tensors.js';
import { assertSameArray } from '../../support/tolerance.js';
import { EXAMPLE, Files, fails, parseCsv, run, runJson, sixDigits } from './support.js';

const [ROWS, COLUMNS, VOCABULARY] = [6, 5, 17] as const;
const SPEC = { seed: 8, rows: ROWS, columns: COLUMNS, vocabulary: VOCABULARY, listed: 4 } as const;

describe('distill', () => {
  const files = new Files();
  after(() => files.remove());

  const drawn = makeLogitsBatch({ ...SPEC, values: 'moderate', mask: 'random' });
  const batchIn = (dtype: 'float32' | 'bfloat16') => {
    const { logits, teacherLogits, teacherTopkIds, teacherTopkLogprobs, targets, actionMask } = layLogits(
      drawn,
      dtype,
    ) as LogitsLossBatch;
    const inputs = { logits, teacherLogits, teacherTopkIds, teacherTopkLogprobs, targets, actionMask };
    return { shape: [ROWS, COLUMNS], ...inputs } as LogitsLossBatch;
  };
  /** Writes a batch: the student's logits and all lists to one file, the teacher's logits and the mask to others. */
  const written = (dtype: 'float32' | 'bfloat16') => {
    const { teacher_logits, action_mask, ...others } = tensorsOf(batchIn(dtype));
    const teacher = `teacher.${dtype === 'float32' ? 'npy' : 'safetensors'}`;
    const pieces = dtype === 'float32' ? npy : (tensor: Tensor) => safetensorsOf([tensor], new Fields());
    return {
      student: files.writeBytes(
        'student.safetensors',
        Buffer.concat(safetensorsOf(Object.values(others), new Fields())),
      ),
      teacher: files.writeBytes(teacher, Buffer.concat(pieces(teacher_logits!, new Fields()))),
      mask: files.writeBytes('mask.npy', Buffer.concat(npy(action_mask!, new Fields()))),
    };
  };
  const gkd = (dtype: 'float32' | 'bfloat16' = 'float32') => {
    const { student, teacher, mask } = written(dtype);
    const inputs = ['--logits', student, '--teacher-logits', teacher, '--action-mask', mask];
    return ['distill', '--loss', 'trl/gkd', '--beta', '0.3', ...inputs];
  };
  /** Returns what the library computes, as the program prints it. */
  const expectedOf = (name: string, args: object, dtype: 'float32' | 'bfloat16' = 'float32') => {
    const fn = LOSS_FN.create(name, { ...args });
    const { loss, metrics } = fn.computeSync(batchIn(dtype));
    const { tokens } = fn.countSync(batchIn(dtype));
    return { name, loss, metrics, rows: ROWS, tokens, vocabulary: VOCABULARY };
  };

  for (const dtype of ['float32', 'bfloat16'] as const)
    it(`prints the loss of ${dtype} logits of two files, in parts of any size`, async () => {
      const row = COLUMNS * VOCABULARY * 2 * (dtype === 'float32' ? 4 : 2);
      const expected = expectedOf('trl/gkd', { beta: 0.3 }, dtype);
      for (const [bytes, batches] of [
        [1, 6],
        [2 * row, 3],
        [4 * row + 1, 2],
      ] as const)
        assert.deepEqual(await runJson(...gkd(dtype), '--batch-bytes', String(bytes)), {
          ...expected,
          batches,
        });
      assert.deepEqual(await runJson(...gkd(dtype)), expected);
    });

  it('prints a table, and CSV', async () => {
    const { loss, tokens } = expectedOf('trl/gkd', { beta: 0.3 });
    const { code, stdout } = await run(...gkd(), '--batch-bytes', '1');
    assert.equal(code, 0);
    assert.match(stdout, /^function +trl\/gkd\n/);
    assert.match(stdout, new RegExp(`\nloss +${sixDigits(loss)}\n`));
    assert.match(stdout, new RegExp(`\nrows +6\ntokens +${tokens}\nvocabulary +17\nbatches +6\n`));
    const [line] = parseCsv((await run(...gkd(), '--csv')).stdout);
    assert.deepEqual([line!.name, Number(line!.loss), line!.rows], ['trl/gkd', loss, '6']);
  });

  it('computes from lists and labels', async () => {
    const { student, mask } = written('float32');
    const lists = [
      '--teacher-topk-ids',
      student,
      '--teacher-topk-logprobs',
      `${student}:teacher_topk_logprobs`,
    ];
    const inputs = ['--logits', student, ...lists, '--action-mask', mask, '--batch-bytes', '700'];
    for (const name of ['tinker/sdft', 'verl/distill_topk']) {
      const { loss, batches } = await runJson('distill', '--loss', name, ...inputs);
      assert.deepEqual([loss, batches], [expectedOf(name, {}).loss, 3]);
    }
    const given = ['--logits', student, '--targets', student, '--action-mask', mask];
    const smoothed = await runJson(
      'distill',
      '--loss=hf/label_smoothing',
      '--label-smoothing-factor=0.1',
      ...given,
    );
    assert.deepEqual(smoothed, expectedOf('hf/label_smoothing', { labelSmoothingFactor: 0.1 }));
  });

  it('writes the gradient with respect to the logits', async () => {
    const out = files.path('gradient.safetensors');
    const { gradLogits } = LOGITS_LOSS_FN.create('trl/gkd', { beta: 0.3 }).computeSync(
      batchIn('float32') as never,
      {
        gradLogits: true,
      },
    );
    for (const bytes of ['1', '1000000']) {
      const printed = await runJson(...gkd(), '--grad-out', out, '--batch-bytes', bytes);
      assert.equal(printed.file, out);
      const opened = await openSafetensors(out);
      assert.deepEqual(opened.names, ['grad_logits']);
      const { shape, dtype, open } = await opened.tensor('grad_logits');
      assert.deepEqual(shape, [ROWS, COLUMNS, VOCABULARY]);
      const found = dtype.decode(await (await open()).read(4 * ROWS * COLUMNS * VOCABULARY));
      await opened.close();
      assertSameArray(found as Float32Array, gradLogits as Float32Array, 'gradient');
    }
  });

  it('multiplies the loss of each token by its weight', async () => {
    const { student, teacher } = written('float32');
    const plain = batchIn('float32');
    for (const shape of [[ROWS, COLUMNS], [ROWS]] as number[][]) {
      const length = shape.reduce((all, size) => all * size);
      const values = Float32Array.from({ length }, (_, i) => (i % 3) / 2);
      const tensor = { name: 'token_weights', dtype: F32, shape, data: Buffer.from(values.buffer) };
      const weights = files.writeBytes('weights.npy', Buffer.concat(npy(tensor, new Fields())));
      const inputs = ['--logits', student, '--teacher-logits', teacher, '--token-weights', weights];
      const { loss } = await runJson('distill', '--loss', 'trl/gkd', ...inputs, '--batch-bytes', '1');
      const { actionMask: _, ...batch } = { ...plain, tokenWeights: values };
      assert.equal(loss, LOSS_FN.create('trl/gkd').computeSync(batch).loss);
    }
  });

  it('has an option for each input of each loss', () => {
    const names = LOGITS_FILE_INPUTS.map(({ name }) => name);
    for (const loss of LOGITS_LOSS_FN.names())
      for (const key of LOGITS_LOSS_FN.get(loss).declaration!.reads) {
        const { file = key } = key in LOGITS_INPUTS ? { file: key } : inputRow(key as InputName);
        assert.ok(names.includes(file), `${loss}: ${key}`);
      }
  });

  it('has options of its own that no loss has', async () => {
    const { stdout } = await run('distill', '--help');
    const own = [...stdout.matchAll(/^ +(--[a-z-]+)/gm)].map(([, flag]) =>
      flag!.slice(2).replaceAll('-', '_'),
    );
    assert.ok(own.includes('teacher_logits') && own.includes('batch_bytes'));
    for (const name of LOGITS_LOSS_FN.names())
      for (const option of Object.keys(LOGITS_LOSS_FN.get(name).defaultArgs()))
        assert.ok(!own.includes(option), `${name}: ${option}`);
    assert.match(
      (await run('distill', '--loss', 'trl/gkd', '--help')).stdout,
      /Options of trl\/gkd:\n +--beta/,
    );
  });

  it('says what is wrong with a command line, and leaves no file', async () => {
    const { student, teacher } = written('float32');
    const before = readdirSync(files.directory);
    const both = ['--logits', student, '--teacher-logits', teacher];
    const whole = ['distill', '--loss', 'roll/distill', ...both, '--targets', student];
    const failing: [words: string[], ...says: RegExp[]][] = [
      [['distill', ...both], /expected --loss <name>, got none/],
      [['distill', '--loss', 'ppo', ...both], /unknown loss of logits: .*'ppo'/],
      [['distill', '--loss', 'trl/gkdd', ...both], /Did you mean 'trl\/gkd'\?/],
      [[...gkd(), '--betta', '1'], /Did you mean '--beta'\?/],
      [[...gkd(), '--beta', '2'], /--beta: expected a number from 0 to 1, got number 2/],
      [[...gkd(), '--ref-logits', student], /--ref-logits: expected only what trl\/gkd reads/],
      [['distill', '--loss', 'trl/gkd', '--logits', student], /--teacher-logits: expected .*, got nothing/],
      [['distill', '--loss', 'trl/gkd', '--teacher-logits', teacher], /--logits: expected .*, got nothing/],
      [
        [...whole, '--batch-bytes', '100'],
        /--batch-bytes: expected at least 4080, because roll\/distill reduces over all rows/,
      ],
      [[...gkd(), '--batch-bytes', '0'], /Expected a whole number of at least 1/],
      [
        [...gkd(), '--grad-out', 'gradient.jsonl'],
        /gradient\.jsonl: expected a name that ends in .*safetensors/,
      ],
      [
        [...gkd(), '--grad-out', student],
        /--grad-out .*: expected a file other than the files that are read/,
      ],
      [[...gkd(), '--device', 'tpu'], /device/],
      [['evaluate', EXAMPLE, '--loss', 'trl/gkd'], /'policy-loss distill' computes it from files of logits/],
    ];
    for (const [words, ...says] of failing) await fails(2, words, ...says);
    const bad = [...gkd(), '--action-mask', student, '--grad-out', files.path('never.safetensors')];
    await fails(1, bad, /student\.safetensors: expected a tensor action_mask/);
    assert.deepEqual(readdirSync(files.directory), before);
    const { loss } = await runJson(...whole);
    assert.ok(Number.isFinite(loss));
  });
});
