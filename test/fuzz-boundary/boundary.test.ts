/**
 * Tests that every public function returns a result or throws a LossError, whatever its arguments are. It must never
 * throw another exception, crash or hang. The suite repeats cases that failed in the past, draws random cases, and runs
 * the fuzzer briefly with a fixed seed. `npm run fuzz` runs the fuzzer for longer, each time with another seed.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import * as api from '../../lib/index.js';
import { makeBatch } from '../support/draw.js';
import { requiredArgs } from '../support/draw-arguments.js';
import { paddedBatch } from '../support/subject.js';
import { anyCase, type Case, run } from './cases.js';
import { type Anything, Hostile, THROWN } from './odd-values.js';
import { EXEMPT, KEYS, needsDevice, targets } from './targets.js';
import type { Recipe } from './values.js';
import { fuzz } from './watch.js';

const SEED = 2025;
const RUNS = 3000;
// The policy losses of the package. Random cases also register others, which need not work.
const POLICY_LOSSES = api.POLICY_LOSS_FN.names();

const TOKENS = 6;
const floats = () => new Float32Array(TOKENS).fill(-1);
const batch = (): Anything => ({
  shape: [2, 3],
  logprob: floats(),
  oldLogprob: floats(),
  refLogprob: floats(),
  entropy: floats(),
  tokenLevelScores: floats(),
  advantages: floats(),
  rewards: [1, 2],
  groupIds: [1, 1],
  actionMask: new Uint8Array(TOKENS).fill(1),
});
// Cases of the fuzzer (see Case) that failed once.
const FAULTS: Case[] = [
  // merge() searched a list of parts for a wrong one before it checked the length of the list.
  {
    target: 'TinkerSDFTLossFn#merge',
    spoils: [{ what: 'proxy', index: 0, mode: 'endless', after: 0 }],
  },
  // The evaluator read the program outside the guard that turns exceptions into a LossError.
  {
    target: 'the program of max(-A*r, -A*clip(r, 1 - low, 1 + high))',
    spoils: [{ what: 'proxy', index: 0, mode: 'throws', after: 6 }],
  },
  // Native code read as many names of metrics as the array claims to have.
  {
    target: 'the program of max(-A*r, -A*clip(r, 1 - low, 1 + high))',
    spoils: [{ what: 'argument', index: 2, value: { kind: 'odd', name: 'array of length 2**32 - 1' } }],
  },
  // Native code converted the name of an aggregation, which is such an array here, to a text.
  {
    target: 'the program of lp*batch_sum(r*row_min(lp*batch_mean(lp)))',
    spoils: [{ what: 'argument', index: 3, value: { kind: 'odd', name: 'array of length 2**32 - 1' } }],
  },
  // The list of metrics was read outside the guard.
  {
    target: 'the program of max(-A*r, -A*clip(r, 1 - low, 1 + high))',
    spoils: [
      {
        what: 'key',
        index: 2,
        key: 'shape',
        value: { kind: 'typed', type: 'Float32Array', length: 0, memory: 'plain', twist: 'none' },
        access: 'inherited',
      },
    ],
  },
  // A property that the package relies on could be replaced in a loss.
  {
    target: 'checkLoss',
    spoils: [{ what: 'key', index: 0, key: 'reads', value: { kind: 'plain', value: '' }, access: 'value' }],
  },
  // The buffer of an array without a prototype was read as a property.
  {
    target: 'DummyKLFn#calculateKlLossSync',
    spoils: [
      {
        what: 'key',
        index: 1,
        key: 'grad',
        value: { kind: 'typed', type: 'Float32Array', length: 0, memory: 'plain', twist: 'no prototype' },
        access: 'value',
      },
    ],
  },
  // All elements of a list of settings were read, however many the list claims to have.
  {
    target: 'fromTrinityConfig',
    spoils: [{ what: 'argument', index: 0, value: { kind: 'odd', name: 'array of length 2**32 - 1' } }],
  },
  // A token segment without instructions.
  {
    target: 'the program of row_max(r)*batch_min(d) + (A > 0 ? tanh(lp) : log1p(H))',
    spoils: [{ what: 'program', index: 1, how: { array: 'code', writes: [], moves: [[21, 629]], cut: 0 } }],
  },
];
const plain = (value: number): Recipe => ({ kind: 'plain', value });
const listOf = (...items: number[]): Recipe => ({ kind: 'array', items: items.map(plain), twist: 'none' });
const objectOf = (members: Record<string, Recipe>): Recipe => ({
  kind: 'object',
  entries: Object.entries(members).map(([key, value]) => ({ key, value, access: 'value' })),
});
const UNDEFINED: Recipe = { kind: 'odd', name: 'undefined' };
const endless = (item: Recipe): Recipe => ({
  kind: 'proxy',
  of: { kind: 'array', items: [item], twist: 'none' },
  mode: 'endless',
  after: 0,
});
// The functions that take options of many classes. One algorithm stands for all, whose objective() is the same function.
const TAKES_ANY_KEY = /^new |\.create$|^GRPOAlgorithm\.objective$|Config$/;
// Lists of numbers, of rows and of rows without tokens.
const ENDLESS = [plain(0), plain(1), listOf(1, 1, 1), listOf()].map(endless);
// So many characters that quadratic work would exceed Mocha's time limit.
const MANY = 500_000;
const LONG = [
  'long string',
  'symbol of a long name',
  'object of a class with a long name',
  'object of long keys',
];
const raise = (): never => {
  throw new Hostile('thrown by the caller');
};
const throwing = (key: string): Anything => Object.defineProperty({}, key, { get: raise, enumerable: true });
const ppo = () => api.POLICY_LOSS_FN.create('ppo') as api.PPOPolicyLossFn;
const revoked = (): Anything => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
};

/**
 * Asserts that a call throws a LossError with this code, or rejects with one. `cause` is the expected class of its
 * cause.
 */
async function refuses(code: api.LossErrorCode, call: () => unknown, cause?: unknown): Promise<void> {
  await assert.rejects(
    async () => call(),
    (error: unknown) => {
      assert.ok(error instanceof api.LossError, `${(error as Error)?.stack ?? String(error)}`);
      assert.equal(error.code, code, error.message);
      if (cause) assert.ok(error.cause instanceof (cause as typeof Error), String(error.cause));
      return true;
    },
  );
}

describe('the boundary', () => {
  it('covers every export, or states why not', () => {
    const visited = targets.map(({ name }) => name.replace(/^new /, '').split(/[.#]/)[0]!);
    for (const name of Object.keys(api))
      assert.ok(
        visited.includes(name) || `${name} constructor` in EXEMPT,
        `${name}: expected a target or an entry in EXEMPT`,
      );
    for (const what of Object.keys(EXEMPT))
      assert.ok(what.replace(' constructor', '') in api, `${what}: exempt, but not an export`);
    assert.ok(targets.length > 400);
  });

  it('accepts the valid arguments of every target', async () => {
    for (const target of targets) {
      // test/device/boundary.test.ts covers those that need a device.
      if (needsDevice(target) || target.name === 'AlgorithmType.objective') continue;
      await target.call(target.valid());
      target.restore?.();
    }
  });

  it(`holds in ${RUNS} random cases`, async () => {
    await fc.assert(fc.asyncProperty(anyCase, run), { seed: SEED, numRuns: RUNS });
  });

  it('holds in the cases in which the fuzzer found faults', async () => {
    for (const one of FAULTS) await run(one);
  });

  // No function may read all elements of an array before it has checked their number.
  it('does not hang for arrays that claim to have 2^32 - 1 elements', async () => {
    const value = { kind: 'odd', name: 'array of length 2**32 - 1' } as const;
    for (const target of targets) {
      if (needsDevice(target)) continue;
      for (const [index, given] of target.valid().entries()) {
        await run({ target: target.name, spoils: [{ what: 'argument', index, value }] });
        // A typed array would convert the array to a number.
        if (given === null || typeof given !== 'object' || ArrayBuffer.isView(given)) continue;
        const keys = TAKES_ANY_KEY.test(target.name) ? KEYS : Object.keys(given);
        for (const key of keys)
          await run({ target: target.name, spoils: [{ what: 'key', index, key, value, access: 'value' }] });
      }
    }
  });

  it('throws a LossError whatever the arguments of a function throw when they are read', async () => {
    for (const target of targets) {
      if (needsDevice(target)) continue;
      for (const [index, given] of target.valid().entries()) {
        for (const throws of Object.keys(THROWN))
          await run({
            target: target.name,
            spoils: [{ what: 'proxy', index, mode: 'throws', after: 0 }],
            throws,
          });
        if (given === null || typeof given !== 'object' || ArrayBuffer.isView(given)) continue;
        const value = { kind: 'plain', value: null } as const;
        for (const key of Object.keys(given))
          for (const throws of ['an error with throwing members', 'a revoked proxy'])
            await run({
              target: target.name,
              spoils: [{ what: 'key', index, key, value, access: 'throws' }],
              throws,
            });
      }
    }
  });

  it('compares the lengths of lists that claim 2^53 - 1 elements before it reads the elements', async () => {
    for (const list of ENDLESS) {
      for (const target of targets) {
        if (needsDevice(target)) continue;
        for (const [index, given] of target.valid().entries()) {
          if (given === null || typeof given !== 'object' || ArrayBuffer.isView(given)) continue;
          for (const key of [...Object.keys(given), 'cuSeqlens'])
            await run({
              target: target.name,
              spoils: [{ what: 'key', index, key, value: list, access: 'value' }],
            });
        }
      }
      const without = { what: 'key', index: 0, key: 'shape', value: UNDEFINED, access: 'value' } as const;
      for (const key of ['logprob', 'cuSeqlens'])
        await run({
          target: 'PPOPolicyLossFn#computeSync',
          spoils: [without, { what: 'key', index: 0, key, value: list, access: 'value' }],
        });
      for (const key of ['tokenIds', 'offsets']) {
        const tokenIds = key === 'tokenIds' ? list : listOf(0, 0);
        const offsets = key === 'offsets' ? list : listOf(0, 1, 2);
        const value = objectOf({ tokenIds, offsets });
        await run({
          target: 'logprobsSync',
          spoils: [{ what: 'key', index: 1, key: 'support', value, access: 'value' }],
        });
      }
    }
  });

  it('repeats only the beginning of long keys and texts in its messages', async () => {
    const odd = (name: string): Recipe => ({ kind: 'odd', name });
    for (const target of targets) {
      if (needsDevice(target)) continue;
      for (const [index, given] of target.valid().entries()) {
        for (const name of LONG)
          await run({ target: target.name, spoils: [{ what: 'argument', index, value: odd(name) }] });
        if (given === null || typeof given !== 'object' || ArrayBuffer.isView(given)) continue;
        const value = odd('long string');
        for (const key of [...Object.keys(given), 'many letters', 'many underscores'])
          await run({ target: target.name, spoils: [{ what: 'key', index, key, value, access: 'value' }] });
      }
    }
  });

  it('names a batch that is not an object', () => {
    for (const name of api.LOSS_FN.names()) {
      const fn = api.LOSS_FN.create(name, requiredArgs(api.LOSS_FN.get(name).declaration)) as Anything;
      for (const given of [undefined, null, 5, 'text'])
        for (const call of ['computeSync', 'countSync'])
          assert.throws(() => fn[call](given), { code: 'ERR_INVALID_INPUT', message: /^batch: / }, name);
    }
  });

  it('ends each call although the caller masks the tokens meanwhile', async () => {
    const spec = { seed: SEED, columns: 100, values: 'moderate', mask: 'ones', packed: false } as const;
    for (const name of POLICY_LOSSES) {
      const { declaration } = api.POLICY_LOSS_FN.get(name);
      const fn = api.POLICY_LOSS_FN.create(name, requiredArgs(declaration));
      for (let round = 0; round < 20; round++) {
        // Rows come in pairs or in threes.
        const batch = paddedBatch(makeBatch({ ...spec, rows: round % 2 === 0 ? 6 : 42 }));
        const computed = fn.compute(batch, { grad: true });
        for (let turns = 0; turns < round * 20; turns++) Math.hypot(turns, round);
        (batch.actionMask as Uint8Array).fill(0);
        await computed;
      }
    }
  });

  it('holds in a process of its own', async () => {
    const { executions, fault } = await fuzz(1, SEED);
    assert.equal(fault, undefined);
    assert.ok(executions > 0);
  });

  describe("exceptions of the caller's code become the cause of a LossError", () => {
    const cases: [string, api.LossErrorCode, () => unknown][] = [
      ['from a getter of a batch', 'ERR_INVALID_INPUT', () => ppo().compute(throwing('logprob'))],
      [
        'from its shape',
        'ERR_INVALID_INPUT',
        () => ppo().computeSync({ ...batch(), ...{}, shape: proxyOf([2, 3]) }),
      ],
      ['from the options of a call', 'ERR_INVALID_INPUT', () => ppo().compute(batch(), throwing('grad'))],
      [
        'from the options of a KL call',
        'ERR_INVALID_OPTION',
        () => new api.K2Fn().calculateKlLossSync(batch(), throwing('lossAggMode')),
      ],
      ['from a device', 'ERR_INVALID_INPUT', () => new api.K2Fn().calculateKl(batch(), throwing('device'))],
      [
        'from the options of an entropy call',
        'ERR_INVALID_OPTION',
        () => new api.DefaultEntropyLossFn().compute(batch(), throwing('lossAggMode')),
      ],
      [
        'from the options of an advantage call',
        'ERR_INVALID_INPUT',
        () => new api.GRPOGroupedAdvantage().compute(batch(), throwing('seed')),
      ],
      [
        'from the options of an objective',
        'ERR_INVALID_INPUT',
        () => api.GRPOAlgorithm.objective().computeSync(batch(), throwing('grad')),
      ],
      [
        'from the options of a constructor',
        'ERR_INVALID_OPTION',
        () => new api.PPOPolicyLossFn(throwing('clipRange')),
      ],
      ['from a backend', 'ERR_INVALID_OPTION', () => new api.RLOOAdvantageFn(throwing('backend'))],
      [
        'from the arguments of a registry',
        'ERR_INVALID_OPTION',
        () => api.POLICY_LOSS_FN.create('ppo', throwing('clip_range')),
      ],
      [
        'from a configuration',
        'ERR_INVALID_OPTION',
        () => api.GRPOAlgorithm.objective(throwing('kl_loss_fn')),
      ],
      ['from a whole configuration', 'ERR_INVALID_INPUT', () => api.fromTrinityConfig(throwing('algorithm'))],
      [
        'from a configuration of any framework',
        'ERR_INVALID_INPUT',
        () => api.fromConfig(throwing('loss_fn')),
      ],
      [
        'from a checked configuration',
        'ERR_INVALID_OPTION',
        () => api.DPOAlgorithm.checkConfig(throwing('mode')),
      ],
      [
        'from an iterator of counts',
        'ERR_INVALID_INPUT',
        () => api.sumCounts({ [Symbol.iterator]: raise } as Anything),
      ],
      ['from names of columns', 'ERR_INVALID_INPUT', () => new api.KeyMapper(throwing('a'))],
    ];
    for (const [what, code, call] of cases) it(what, () => refuses(code, call, Hostile));
  });

  describe('values of a misleading form', () => {
    it('a revoked proxy, as a batch, as options and as a value in a message', async () => {
      await refuses('ERR_INVALID_INPUT', () => ppo().compute(revoked()));
      await refuses('ERR_INVALID_INPUT', () => ppo().computeSync(batch(), revoked()));
      await refuses('ERR_INVALID_INPUT', () => ppo().computeSync({ ...batch(), logprob: revoked() }));
      await refuses('ERR_UNKNOWN_NAME', () => api.POLICY_LOSS_FN.get(revoked()));
    });
    it('an object with only the prototype of an array, a signal or a device batch', async () => {
      const logprob = Object.create(Float32Array.prototype);
      await refuses('ERR_INVALID_INPUT', () => ppo().compute({ ...batch(), logprob }));
      await refuses('ERR_INVALID_INPUT', () =>
        ppo().compute(batch(), { signal: Object.create(AbortSignal.prototype) }),
      );
      await refuses('ERR_INVALID_INPUT', () => ppo().compute(Object.create(api.DeviceBatch.prototype)));
    });
    it('an array that claims to be longer than it is', () => {
      const logprob = Object.defineProperty(new Float32Array(2), 'length', { value: TOKENS });
      return refuses('ERR_INVALID_INPUT', () => ppo().computeSync({ ...batch(), logprob }));
    });
    it('an array that is transferred while the options are read', () => {
      const given = batch();
      const options = {
        get grad() {
          structuredClone(given.logprob, { transfer: [given.logprob.buffer] });
          return true;
        },
      };
      return refuses('ERR_INVALID_INPUT', () => ppo().compute(given, options));
    });
    it('counts, ratios, steps and coefficients that are not numbers', async () => {
      await refuses('ERR_INVALID_INPUT', () =>
        api.sumCounts([{ tokens: 1n, rows: 1, columns: 1 } as Anything]),
      );
      await refuses('ERR_INVALID_INPUT', () => api.sumCounts([{} as Anything]));
      const sapo = new api.SAPOPolicyLossFn();
      await refuses('ERR_INVALID_INPUT', () => sapo.softGateFunction([1n] as Anything, [1]));
      const chord = api.POLICY_LOSS_FN.create('mix_chord') as api.MIXCHORDPolicyLossFn;
      await refuses('ERR_INVALID_INPUT', () =>
        chord.muScheduleFunction(Symbol('now') as Anything, 1, 1, 1, 1),
      );
      const kl = new api.K2Fn({ adaptive: true, targetKl: 1, horizon: 1 });
      await refuses('ERR_INVALID_INPUT', () => kl.updateKlCoef(1n as Anything, 2));
    });
    it('a mapper that is not a KeyMapper, and the base class AlgorithmType', async () => {
      await refuses('ERR_INVALID_INPUT', () => api.KeyMapper.register('none', {} as Anything));
      assert.ok(!api.KeyMapper.names().includes('none'));
      await refuses('ERR_INVALID_INPUT', () => new api.KeyMapper({ a: 5 } as Anything));
      await refuses('ERR_INVALID_INPUT', () => new api.KeyMapper(undefined as Anything));
      await refuses('ERR_INVALID_INPUT', () => api.AlgorithmType.objective());
    });
    it('offsets with holes', () => {
      const cuSeqlens: number[] = [0];
      cuSeqlens[2] = TOKENS;
      const { shape: _, ...packed } = batch();
      return refuses('ERR_INVALID_INPUT', () => ppo().computeSync({ ...packed, cuSeqlens }));
    });
    it('YAML that expands without bounds, or does not parse', async () => {
      const laughs = Array.from({ length: 9 }, (_, i) => {
        const [name, before] = [String.fromCharCode(98 + i), String.fromCharCode(97 + i)];
        return `${name}: &${name} [${Array(9).fill(`*${before}`).join(', ')}]`;
      });
      await refuses('ERR_INVALID_INPUT', () => api.fromTrinityConfig(['a: &a [x]', ...laughs].join('\n')));
      await refuses('ERR_INVALID_INPUT', () => api.fromTrinityConfig('['.repeat(20_000)));
      await refuses('ERR_INVALID_INPUT', () => api.fromConfig(['a: &a [x]', ...laughs].join('\n')));
      await refuses('ERR_INVALID_INPUT', () => api.fromConfig('{a: '.repeat(20_000)));
    });
  });

  describe('values that could take unlimited time or memory', () => {
    it('any number of rows without tokens', async () => {
      for (const rows of [2 ** 20 + 1, 2 ** 53 - 1]) {
        const empty = { shape: [rows, 0], actionMask: new Uint8Array(0), logprob: new Float32Array(0) };
        await refuses('ERR_INVALID_INPUT', () => api.POLICY_LOSS_FN.create('sft').compute(empty as Anything));
      }
    });
    it('empty arrays of the greatest length', async () => {
      const endless = new Array(2 ** 32 - 1);
      const { shape: _, ...packed } = batch();
      await refuses('ERR_INVALID_INPUT', () => ppo().compute({ ...packed, cuSeqlens: endless }));
      await refuses('ERR_INVALID_INPUT', () => ppo().compute({ ...batch(), shape: endless }));
      await refuses('ERR_INVALID_INPUT', () => ppo().compute({ ...batch(), shape: [endless, 3] }));
      await refuses('ERR_SHAPE_MISMATCH', () => ppo().compute({ ...batch(), logprob: endless }));
      await refuses('ERR_SHAPE_MISMATCH', () => ppo().compute({ ...batch(), actionMask: endless }));
      await refuses('ERR_SHAPE_MISMATCH', () =>
        new api.GRPOGroupedAdvantage().compute({ ...batch(), rewards: endless }),
      );
      const sapo = new api.SAPOPolicyLossFn();
      await refuses('ERR_SHAPE_MISMATCH', () => sapo.softGateFunction({ length: 2 ** 53 - 1 }, [1]));
      await refuses('ERR_SHAPE_MISMATCH', () => sapo.softGateFunction({ length: 1e9 }, [1]));
    });
    it('names with many underscores', () =>
      refuses('ERR_INVALID_OPTION', () => api.POLICY_LOSS_FN.create('ppo', { ['_'.repeat(MANY)]: 1 })));
    it('interpolations with many spaces or dots', async () => {
      for (const text of [`\${a,${' '.repeat(MANY)}`, `\${${'a.'.repeat(MANY)}a}`])
        await refuses('ERR_INVALID_OPTION', () => api.fromConfig({ algorithm: { adv_estimator: text } }));
    });
    it('a name with a hundred million letters', () =>
      refuses('ERR_UNKNOWN_NAME', () => api.POLICY_LOSS_FN.get('x'.repeat(1e8))));
  });
});

function proxyOf(of: object): Anything {
  return new Proxy(of, { get: raise });
}
