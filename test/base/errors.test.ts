/**
 * Tests that every invalid argument causes a LossError. The error must have the right code, and its message must name
 * the key, what was expected and what was received. Each case calls computeSync(), and also compute(), which must
 * reject instead of throwing. ERR_OUT_OF_MEMORY is tested in test/life, because these tests must not depend on the
 * machine's memory.
 */
import assert from 'node:assert/strict';
import {
  type Batch,
  ENTROPY_LOSS_FN,
  GSPOLossFn,
  KL_FN,
  type LossErrorCode,
  MIXPolicyLossFn,
  POLICY_LOSS_FN,
  PPOPolicyLossFn,
  RECPolicyLossFn,
  type Registry,
  SAPOPolicyLossFn,
} from '../../lib/index.js';
import { without } from '../support/batch-keys.js';
import { makeBatch } from '../support/draw.js';
import { isLossError } from '../support/loss-error.js';
import { packedBatch, paddedBatch } from '../support/subject.js';

function refusesOption(make: () => unknown, ...says: RegExp[]): void {
  assert.throws(make, isLossError('ERR_INVALID_OPTION', ...says));
}

const ROWS = 4;
const COLUMNS = 25;
const spec = { seed: 1, rows: ROWS, columns: COLUMNS, values: 'moderate', mask: 'random' } as const;
const padded = paddedBatch(makeBatch({ ...spec, packed: false }));
const packed = packedBatch(makeBatch({ ...spec, packed: true }));
const packedLength = (packed.logprob as Float32Array).length;

async function refusesBatch(
  name: string,
  batch: object,
  code: LossErrorCode,
  ...says: RegExp[]
): Promise<void> {
  const fn = POLICY_LOSS_FN.create(name, {});
  assert.throws(() => fn.computeSync(batch as Batch, { grad: true }), isLossError(code, ...says));
  // This call stands outside of rejects(), so that the test fails if the call throws instead of rejecting.
  const promise = fn.compute(batch as Batch, { grad: true });
  await assert.rejects(promise, isLossError(code, ...says));
}

describe('errors', () => {
  describe('missing input', () => {
    const needed: [string, string, RegExp][] = [
      ['ppo', 'logprob', /log_?prob/i],
      ['ppo', 'oldLogprob', /old_?log_?prob/i],
      ['ppo', 'advantages', /advantages/],
      ['dpo', 'refLogprob', /ref_?log_?prob/i],
      ['mix', 'expertMask', /expert_?mask/i],
      ['mix_chord', 'step', /step/],
    ];
    for (const [name, key, says] of needed) {
      it(`${name} without ${key}`, () => refusesBatch(name, without(padded, key), 'ERR_MISSING_INPUT', says));
    }
    it('null and undefined count as missing', async () => {
      await refusesBatch('ppo', { ...padded, advantages: undefined }, 'ERR_MISSING_INPUT', /advantages/);
      await refusesBatch('ppo', { ...padded, advantages: null }, 'ERR_MISSING_INPUT', /advantages/);
    });
    it('neither shape nor cuSeqlens', () =>
      refusesBatch('ppo', without(padded, 'shape'), 'ERR_MISSING_INPUT', /shape/, /cu_?seqlens/i));
    it('KL without ref_logprob, entropy without entropy, mix entropy without expert_mask', async () => {
      const missing = (says: RegExp) => isLossError('ERR_MISSING_INPUT', says);
      const lossAggMode = 'token-mean';
      const noRef = without(padded, 'refLogprob') as Batch;
      const k2 = KL_FN.create('k2', {});
      assert.throws(() => k2.calculateKlLossSync(noRef, { lossAggMode }), missing(/ref_?log_?prob/i));
      assert.throws(() => k2.calculateKlSync(noRef), missing(/ref_?log_?prob/i));
      await assert.rejects(k2.calculateKlLoss(noRef, { lossAggMode }), missing(/ref_?log_?prob/i));
      await assert.rejects(k2.calculateKl(noRef), missing(/ref_?log_?prob/i));
      const noEntropy = without(padded, 'entropy') as Batch;
      const entropy = ENTROPY_LOSS_FN.create('default', {});
      assert.throws(() => entropy.computeSync(noEntropy, { lossAggMode }), missing(/entropy/));
      await assert.rejects(entropy.compute(noEntropy, { lossAggMode }), missing(/entropy/));
      const mix = ENTROPY_LOSS_FN.create('mix', {});
      assert.throws(
        () => mix.computeSync(without(padded, 'expertMask') as Batch, { lossAggMode }),
        missing(/expert_?mask/i),
      );
    });
  });

  describe('shapes', () => {
    const total = ROWS * COLUMNS;
    const wrong: [string, object, RegExp[]][] = [
      ['a short logprob', { logprob: new Float32Array(total - 1) }, [/log_?prob/i, /100/, /99/]],
      ['a long oldLogprob', { oldLogprob: new Float32Array(total + 1) }, [/old_?log_?prob/i, /100/, /101/]],
      [
        'advantages of neither length B×T nor B',
        { advantages: new Float32Array(5) },
        [/advantages/, /\b5\b/],
      ],
      ['a short mask', { actionMask: new Uint8Array(3) }, [/mask/i, /100/, /\b3\b/]],
      ['a mask of boolean[]', { actionMask: [true, false] }, [/mask/i, /100/, /\b2\b/]],
      ['an empty column', { advantages: new Float32Array(0) }, [/advantages/]],
      [
        'half precision',
        { logprob: { data: new Uint16Array(7), dtype: 'bfloat16' } },
        [/log_?prob/i, /\b7\b/],
      ],
      ['number[][] with a wrong number of rows', { advantages: [[1, 2], [3]] }, [/advantages/]],
      [
        'number[][] with ragged rows',
        { advantages: Array.from({ length: ROWS }, (_, b) => new Array(b ? COLUMNS : COLUMNS - 1).fill(1)) },
        [/advantages/],
      ],
    ];
    for (const [what, change, says] of wrong) {
      it(what, () => refusesBatch('ppo', { ...padded, ...change }, 'ERR_SHAPE_MISMATCH', ...says));
    }
    it('an expert mask whose length is not the number of rows', () =>
      refusesBatch(
        'mix',
        { ...padded, expertMask: new Uint8Array(9) },
        'ERR_SHAPE_MISMATCH',
        /expert/i,
        /\b4\b/,
        /\b9\b/,
      ));
    it('steps whose number is not the number of rows', () =>
      refusesBatch(
        'mix_chord',
        { ...padded, step: [60, 60] },
        'ERR_SHAPE_MISMATCH',
        /step/,
        /\b4\b/,
        /\b2\b/,
      ));
    it('an odd number of rows for pairs', () => {
      const odd = paddedBatch(makeBatch({ ...spec, rows: 3, packed: false }));
      return refusesBatch('dpo', odd, 'ERR_SHAPE_MISMATCH', /even|odd|pair/i, /\b3\b/);
    });
    it('cuSeqlens that do not end at the number of tokens', () => {
      const cuSeqlens = Int32Array.from(packed.cuSeqlens as Int32Array);
      cuSeqlens[ROWS]! += 2;
      return refusesBatch(
        'ppo',
        { ...packed, cuSeqlens },
        'ERR_SHAPE_MISMATCH',
        new RegExp(`\\b${packedLength}\\b`),
        new RegExp(`\\b${packedLength + 2}\\b`),
      );
    });
    it('cuSeqlens that decrease', () => {
      const cuSeqlens = Int32Array.from(packed.cuSeqlens as Int32Array);
      cuSeqlens[2] = cuSeqlens[1]! - 1;
      return refusesBatch(
        'ppo',
        { ...packed, cuSeqlens },
        'ERR_SHAPE_MISMATCH',
        /cu_?seqlens/i,
        /increas|decreas|order/i,
      );
    });
    it('cuSeqlens that do not begin at 0', () => {
      const cuSeqlens = Int32Array.from(packed.cuSeqlens as Int32Array);
      cuSeqlens[0] = 1;
      return refusesBatch(
        'ppo',
        { ...packed, cuSeqlens },
        'ERR_SHAPE_MISMATCH',
        /cu_?seqlens/i,
        /\b0\b/,
        /\b1\b/,
      );
    });
    it('a gradient array of another length', async () => {
      const fn = POLICY_LOSS_FN.create('ppo', {});
      const says = isLossError('ERR_SHAPE_MISMATCH', /grad/, /100/, /99/);
      const grad = new Float32Array(99);
      assert.throws(() => fn.computeSync(padded, { grad }), says);
      await assert.rejects(fn.compute(padded, { grad }), says);
    });
  });

  describe('inputs', () => {
    const detached = (column: unknown) => {
      const copy = (column as Float32Array).slice();
      structuredClone(copy, { transfer: [copy.buffer] });
      return copy;
    };
    it('detached columns', async () => {
      for (const key of ['logprob', 'advantages', 'actionMask']) {
        const says = key === 'actionMask' ? /mask/i : new RegExp(key);
        await refusesBatch(
          'ppo',
          { ...padded, [key]: detached(padded[key]) },
          'ERR_INVALID_INPUT',
          says,
          /detach/i,
        );
      }
    });
    it('a detached column after many calls, when optimised code may read its old length', () => {
      const fn = POLICY_LOSS_FN.create('ppo', {});
      const bytes = 4 * ROWS * COLUMNS;
      const Resizable = ArrayBuffer as new (
        length: number,
        options: { maxByteLength: number },
      ) => ArrayBuffer;
      const resizable = new Float32Array(new Resizable(bytes, { maxByteLength: 2 * bytes }));
      const says = isLossError('ERR_INVALID_INPUT', /old_?log_?prob/i, /detach/i);
      for (let call = 0; call < 20_000; call++) {
        const batch = { ...padded };
        if (call % 10 === 0) batch.logprob = resizable;
        if (call % 10 !== 1) fn.computeSync(batch);
        else assert.throws(() => fn.computeSync({ ...batch, oldLogprob: detached(batch.oldLogprob) }), says);
      }
    });
    it('a detached column in half precision', () => {
      const data = detached(new Uint16Array(ROWS * COLUMNS));
      const logprob = { data, dtype: 'bfloat16' };
      return refusesBatch('ppo', { ...padded, logprob }, 'ERR_INVALID_INPUT', /log_?prob/i, /detach/i);
    });
    it('a detached gradient array', () => {
      const grad = detached(padded.logprob) as Float32Array<ArrayBuffer>;
      assert.throws(
        () => POLICY_LOSS_FN.create('ppo', {}).computeSync(padded, { grad }),
        isLossError('ERR_INVALID_INPUT', /grad/, /detach/i),
      );
    });

    const n = ROWS * COLUMNS;
    const wrong: [string, object, RegExp[]][] = [
      ['integers', { logprob: new Int32Array(n) }, [/log_?prob/i, /Float32Array|float32/, /Int32Array/]],
      ['a string', { logprob: 'high' }, [/log_?prob/i, /string|high/]],
      ['an object', { advantages: { data: [1, 2] } }, [/advantages/]],
      ['a number instead of a column', { oldLogprob: 4 }, [/old_?log_?prob/i, /number|4/]],
      ['strings in an array', { advantages: new Array(n).fill('1') }, [/advantages/, /'1'|string/]],
      [
        'an unknown dtype',
        { logprob: { data: new Uint16Array(n), dtype: 'float8' } },
        [/log_?prob/i, /float8/],
      ],
      [
        'a dtype that does not match the data',
        { logprob: { data: new Float32Array(n), dtype: 'float16' } },
        [/log_?prob/i, /Uint16Array/],
      ],
      [
        'a mask of 16-bit numbers',
        { actionMask: new Uint16Array(n) },
        [/mask/i, /Uint8Array/, /Uint16Array/],
      ],
      ['a string as the shape', { shape: 'wide' }, [/shape/]],
      ['a shape with a fraction', { shape: [2.5, 40] }, [/shape/, /2\.5/]],
      ['a shape with negative numbers', { shape: [-4, -25] }, [/shape/, /-4/]],
      ['a shape of three numbers', { shape: [2, 2, 25] }, [/shape/]],
    ];
    for (const [what, change, says] of wrong) {
      it(what, () => refusesBatch('ppo', { ...padded, ...change }, 'ERR_INVALID_INPUT', ...says));
    }
    it('something other than a batch', async () => {
      for (const batch of [undefined, null, 7]) {
        assert.throws(
          () => POLICY_LOSS_FN.create('ppo', {}).computeSync(batch as unknown as Batch),
          isLossError('ERR_INVALID_INPUT', /batch/i),
        );
      }
    });
    it('different steps for the rows', () =>
      refusesBatch(
        'mix_chord',
        { ...padded, step: [60, 60, 61, 60] },
        'ERR_INVALID_INPUT',
        /step/,
        /60/,
        /61/,
      ));
    it('a gradient array of another type', async () => {
      const fn = POLICY_LOSS_FN.create('ppo', {});
      const says = isLossError('ERR_INVALID_INPUT', /grad/, /Float32Array/, /Float64Array/);
      const grad = new Float64Array(n) as unknown as Float32Array;
      assert.throws(() => fn.computeSync(padded, { grad }), says);
      await assert.rejects(fn.compute(padded, { grad }), says);
    });
  });

  describe('names', () => {
    it('an unknown function: the message begins with the nearest, or lists a few of the known ones', () => {
      const wrongNames: [Registry<unknown>, string, string][] = [
        [POLICY_LOSS_FN, 'gsspo', 'gspo'],
        [POLICY_LOSS_FN, 'mixchord', 'mix_chord'],
        [KL_FN, 'low_var', 'low_var_kl'],
        [ENTROPY_LOSS_FN, 'defualt', 'default'],
      ];
      for (const [registry, wrong, near] of wrongNames) {
        const nearest = new RegExp(`^Did you mean '${near}'\\? `);
        for (const ask of [() => registry.get(wrong), () => registry.create(wrong, {})]) {
          assert.throws(ask, isLossError('ERR_UNKNOWN_NAME', new RegExp(wrong), nearest));
        }
      }
      assert.throws(
        () => POLICY_LOSS_FN.get('xxxxxxxxxxxxxxx'),
        isLossError('ERR_UNKNOWN_NAME', /: expected one of ppo, gspo, (\w+, ){10}and \d+ more, got 'x+'$/),
      );
    });
    it('names of properties that every object has', () => {
      for (const name of ['constructor', 'toString', '__proto__', '']) {
        assert.throws(() => POLICY_LOSS_FN.get(name), isLossError('ERR_UNKNOWN_NAME'));
      }
    });
    it('an unknown backend', () => {
      assert.throws(
        () => POLICY_LOSS_FN.create('ppo', {}, { backend: 'verll' }),
        isLossError('ERR_UNKNOWN_NAME', /^Did you mean 'verl'\? unknown backend: got 'verll'$/),
      );
    });
  });

  describe('options', () => {
    const create = (name: string, args: Record<string, unknown>) => () => POLICY_LOSS_FN.create(name, args);

    it('an unknown aggregation', () => {
      const says = [/token-men/, /token-mean/, /seq-mean-token-sum-norm/];
      for (const name of ['ppo', 'gspo', 'sft', 'opmd', 'mix']) {
        refusesOption(create(name, { loss_agg_mode: 'token-men' }), ...says);
      }
      refusesOption(create('mix', { sft_loss_agg_mode: 'token-men' }), ...says);
      const lossAggMode = 'token-men' as 'token-mean';
      refusesOption(() => KL_FN.create('k2', {}).calculateKlLossSync(padded, { lossAggMode }), ...says);
      refusesOption(
        () => ENTROPY_LOSS_FN.create('default', {}).computeSync(padded, { lossAggMode }),
        ...says,
      );
    });
    it('a missing clip range', () => {
      // Only constructors are tested, because create() adds the clip range of defaultArgs() if there is one.
      refusesOption(() => new PPOPolicyLossFn({} as never), /clip_?range/i);
      refusesOption(() => new PPOPolicyLossFn({ clipRangeLow: 0.2 } as never), /clip_?range/i);
      refusesOption(() => new PPOPolicyLossFn({ clipRangeHigh: 0.2 } as never), /clip_?range/i);
      refusesOption(() => new GSPOLossFn({} as never), /clip_?range/i);
      refusesOption(() => new MIXPolicyLossFn({} as never), /clip_?range/i);
    });
    it('a clip_ratio_c of at most 1', () => {
      for (const c of [1, 0.5, -3, Number.NaN]) {
        refusesOption(create('ppo', { clip_ratio_c: c }), /clip_?ratio_?c/i, new RegExp(`${c}`));
      }
      refusesOption(() => new PPOPolicyLossFn({ clipRange: 0.2, clipRatioC: 1 }), /clip_?ratio_?c/i);
    });
    it('options of a wrong type', () => {
      refusesOption(create('ppo', { clip_range: '0.2' }), /clip_?range/i, /number/, /'0\.2'|string/);
      refusesOption(
        create('ppo', { enable_sequence_masking: 'yes' }),
        /enable_?sequence_?masking/i,
        /true|boolean/,
      );
      refusesOption(create('opmd', { tau: Number.NaN }), /tau/, /NaN/);
    });
    it('a tau_neg below tau_pos', () => {
      refusesOption(create('sapo', { tau_pos: 1.2, tau_neg: 1 }), /tau_?neg/i, /tau_?pos/i, /1\.2/);
      assert.doesNotThrow(create('sapo', { tau_pos: 1, tau_neg: 1 }));
      assert.doesNotThrow(() => new SAPOPolicyLossFn({ tauPos: 2 }));
    });
    it('a cutoff_prob outside of [0, 1]', () => {
      for (const c of [-0.1, 1.1, Number.NaN]) {
        refusesOption(create('sft_phi', { cutoff_prob: c }), /cutoff_?prob/i, new RegExp(`${c}`));
      }
      for (const c of [0, 1]) assert.doesNotThrow(create('sft_phi', { cutoff_prob: c }));
    });

    describe('ranges of the options of rec', () => {
      const outside: [string, number[]][] = [
        ['epsilon_low', [0, -0.1, 1.5]],
        ['epsilon_low_prime', [0, -0.1, 1.2]],
        ['epsilon_high', [0, -1]],
        ['epsilon_high_prime', [0, -1]],
        ['regularizer_coef', [-0.1]],
        ['temp', [0, -1]],
      ];
      for (const [option, values] of outside) {
        it(option, () => {
          const says = new RegExp(option.replaceAll('_', '_?'), 'i');
          const camel = option.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
          for (const value of [...values, Number.NaN]) {
            refusesOption(create('rec', { [option]: value }), says, new RegExp(`${value}`));
            refusesOption(() => new RECPolicyLossFn({ [camel]: value }), says);
          }
        });
      }
      it('accept their ends', () => {
        assert.doesNotThrow(create('rec', { epsilon_low: 1, epsilon_low_prime: 1, regularizer_coef: 0 }));
      });
      it('unknown modes, weights and regularizers', () => {
        refusesOption(
          create('rec', { clip_mode: 'both-sides' }),
          /clip_?mode/i,
          /both-sides/,
          /two-side/,
          /ring/,
        );
        refusesOption(create('rec', { weight: 'is' }), /weight/, /\bis\b/, /importance_sampling/);
        refusesOption(create('rec', { regularizer: 'k3' }), /regularizer/, /k3/, /forward-kl/);
      });
      it("the row's ratio as a weight without gspo-one-side", () => {
        for (const clip_mode of ['none', 'one-side', 'two-side', 'ring']) {
          refusesOption(create('rec', { weight: 'gspo_importance_sampling', clip_mode }), /gspo/);
        }
        assert.doesNotThrow(
          create('rec', { weight: 'gspo_importance_sampling', clip_mode: 'gspo-one-side' }),
        );
      });
    });

    it('an adaptive KL function without target_kl or horizon', () => {
      const adaptive = (args: object) => () => KL_FN.create('k2', { adaptive: true, ...args });
      refusesOption(adaptive({}), /target_?kl|horizon/i);
      refusesOption(adaptive({ target_kl: 0.1 }), /horizon/i);
      refusesOption(adaptive({ horizon: 100 }), /target_?kl/i);
      assert.doesNotThrow(adaptive({ target_kl: 0.1, horizon: 100 }));
    });
  });

  describe('devices', () => {
    it('a device that does not exist', async () => {
      const fn = POLICY_LOSS_FN.create('ppo', {});
      const says = isLossError('ERR_DEVICE_UNAVAILABLE', /cuda:99/);
      await assert.rejects(fn.compute(padded, { device: 'cuda:99' }), says);
    });
  });

  describe('abort', () => {
    const fn = () => POLICY_LOSS_FN.create('ppo', {});
    it('before the call', async () => {
      await assert.rejects(
        fn().compute(padded, { signal: AbortSignal.abort() }),
        isLossError('ERR_ABORTED', /abort/i),
      );
    });
    it('during the call', async () => {
      const { rows, columns } = { rows: 64, columns: 60_000 };
      const column = new Float32Array(rows * columns).fill(-1);
      const batch = {
        shape: [rows, columns],
        logprob: column,
        oldLogprob: column,
        advantages: column,
        actionMask: new Uint8Array(rows * columns).fill(1),
      } as unknown as Batch;
      // On a busy machine, a call may end before this thread gets to abort it.
      const abortOne = async () => {
        const controller = new AbortController();
        const promise = fn().compute(batch, { grad: true, signal: controller.signal });
        controller.abort();
        await promise;
      };
      await assert.rejects(
        async () => {
          for (let i = 0; i < 50; i++) await abortOne();
        },
        isLossError('ERR_ABORTED', /abort/i),
      );
      // An aborted call must not leave the batch locked, so the same batch can be computed afterwards.
      assert.ok(Number.isFinite((await fn().compute(batch)).loss));
    });
    it('after the call, without an effect', async () => {
      const controller = new AbortController();
      const computed = await fn().compute(padded, { grad: true, signal: controller.signal });
      controller.abort();
      assert.ok(Number.isFinite(computed.loss));
    });
  });
});
