/**
 * The driver of the matrix: it walks the registries, and runs every function against an oracle on a place, the CPU or a
 * device. A function without a reference, arguments or golden cases is a failing test. Failures name the function, the
 * case, and the axis that broke.
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import fc from 'fast-check';
import { type Batch, devices, POLICY_LOSS_FN, setThreads } from '../../lib/index.js';
import { FLOAT_COLUMNS } from '../reference/batch.js';
import { without } from '../support/batch-keys.js';
import { type BatchSpec, EDGE_LENGTHS, layOut } from '../support/draw.js';
import { ADVANTAGE_ARGUMENTS, ARGUMENTS } from '../support/draw-arguments.js';
import { everyFunction, oneOfEach } from '../support/functions.js';
import { isEmulated } from '../support/on-device.js';
import { isLossFamily, LOSS_FAMILIES, ROW_COLUMNS } from '../support/subject.js';
import { batchesWithEnds, LONG, LONG_OF_ADVANTAGES, SMALL, WIDE } from './batches.js';
import { algorithms, drawnExpressions, drawnObjectives } from './composed.js';
import { AXES, assertEqual, assertForms, BASE, type Form, OF_DEVICES, variations, within } from './forms.js';
import { everyName, everyTested } from './functions.js';
import { golden } from './golden.js';
import {
  assertAgrees,
  assertDrawnAdvantage,
  assertDrawnLoss,
  assertGolden,
  assertLargeAdvantage,
  assertLargeLoss,
  assertReferenceGolden,
  assertReferenceMasks,
  assertSlopes,
  everywhere,
  type Place,
  type RegisteredGolden,
} from './oracles.js';
import { isOnEdge, layAny, REFERENCES, type Registered } from './reference.js';
import { divisible, LOSS, REGISTRIES, tested, testedAdvantage } from './tested.js';
import { assertWritten, isWritten } from './written.js';

/** Functions without golden cases: other names of functions that have some, and one that no framework computed. */
const WITHOUT_GOLDEN = ['kl kl+', 'kl mse+', 'kl bias_corrected_k3'];

/** Every function and its golden cases. */
const FUNCTIONS = Object.entries(REGISTRIES).flatMap(([family, registry]) =>
  registry.names().map((name) => ({
    family: family as Registered,
    name,
    cases: golden.filter((each): each is RegisteredGolden => each.family === family && each.name === name),
  })),
);

/** Asserts that no function was forgotten. */
export function describeCoverage(): void {
  describe('matrix: coverage', () => {
    const drawn = { ...ARGUMENTS, advantage: ADVANTAGE_ARGUMENTS };
    for (const { family, name, cases } of FUNCTIONS)
      it(`${family} ${name}`, () => {
        assert.ok(REFERENCES[family]().includes(name), `${family} ${name} has no formula in test/reference`);
        if (family !== 'correction')
          assert.ok(
            name in drawn[family],
            `${family} ${name} has no declaration from which to draw arguments`,
          );
        assert.equal(
          cases.length > 0,
          !WITHOUT_GOLDEN.includes(`${family} ${name}`),
          `${family} ${name} has ${cases.length} golden cases in test/golden`,
        );
      });

    it('references and golden cases are of registered functions', () => {
      const registered = (family: string, name: string) =>
        FUNCTIONS.some((each) => each.family === family && each.name === name);
      for (const [family, names] of Object.entries(REFERENCES))
        for (const name of names()) assert.ok(registered(family, name), `${family} ${name}`);
      for (const { id, family, name } of golden)
        if (family in REGISTRIES) assert.ok(registered(family, name), id);
    });
  });
}

export function describeGolden(place: Place): void {
  describe(`matrix: golden cases on ${place}`, () => {
    for (const each of golden)
      it(`${each.family} ${each.name}: ${each.id}`, function () {
        if (each.id === UNFUSED && devices()[0]!.isa === 'sse4') this.skip();
        return assertGolden(each, place);
      });
  });
}

// Two terms of this gradient cancel. Where the float32 operations before that are not fused, the rounding errors of one
// element are 1.22 times what golden cases allow.
const UNFUSED = 'golden/trl/dpo/apo_down/0/6x6/default/moderate/prefix';

/** Compares every loss that an expression can compute with that expression. */
export function describeWritten(): void {
  describe('matrix: built-in losses written as expressions', () => {
    for (const family of ['policy', 'kl'] as const)
      for (const name of REGISTRIES[family].names())
        if (isWritten(family, name)) it(`${family} ${name}`, () => assertWritten(family, name));
  });
}

/** Tests the float64 reference itself. */
export function describeReferences(): void {
  describe('matrix: the reference', () => {
    for (const { family, name, cases } of FUNCTIONS) {
      if (cases.length === 0) continue;
      it(`${family} ${name}: agrees with the golden cases`, async () => {
        for (const each of cases) await within(each.id, () => assertReferenceGolden(each));
      });
      it(`${family} ${name}: reads no masked tokens, and is finite without tokens`, () => {
        for (const each of cases) assertReferenceMasks(each);
      });
      if (family !== 'advantage' && family !== 'correction')
        it(`${family} ${name}: gradients are slopes`, () => assertSlopes(family, name, cases));
    }
  });
}

const LARGE = [
  { rows: 2, columns: 3000, values: 'moderate' },
  { rows: 2, columns: 3000, values: 'wide' },
  // More than two chunks.
  { packed: true, rowLengths: [17, 33_000, 1, 250], columns: 33_000 },
] as const;
const LARGE_ON_DEVICE = { packed: true, rowLengths: [3, 17, 9000, 1, 250, 64], rows: 6, columns: 9000 };

/** Compares every function with its reference on batches that are drawn at random. */
export function describeDrawn(place: Place): void {
  const onCpu = place === 'cpu';
  describe(`matrix: drawn batches on ${place}`, () => {
    for (const family of LOSS_FAMILIES)
      for (const name of REGISTRIES[family].names()) {
        it(`${family} ${name}`, () => assertDrawnLoss(family, name, place, onCpu ? 16 : 6));
        it(`${family} ${name}: long rows`, async () => {
          for (const part of onCpu ? LARGE : [LARGE_ON_DEVICE])
            await assertLargeLoss(family, name, { ...part } as never, place);
        });
      }
    for (const [name, args] of Object.entries(ADVANTAGE_ARGUMENTS)) {
      it(`advantage ${name}`, () => assertDrawnAdvantage(name, args, place, onCpu ? 50 : 6));
      if (onCpu) it(`advantage ${name}: long and many rows`, () => assertLargeAdvantage(name, args));
    }
  });

  if (onCpu)
    describe('matrix: rows without tokens', () => {
      for (const { family, name, args, title } of everyFunction())
        it(title, async () => {
          const on = tested(family, name, args, title);
          for (const mask of ['emptyrows', 'zero'] as const) {
            const result = await assertAgrees(on, family, on.draw({ ...SMALL, mask }));
            const gradients = Object.values(result.tokens).flatMap((values) => [...(values as Float32Array)]);
            for (const number of [...Object.values(result.numbers), ...gradients])
              assert.ok(Number.isFinite(number), `${number} is not finite`);
            if (mask === 'zero')
              assert.ok(
                gradients.every((g) => Object.is(g, 0)),
                'a gradient without a token',
              );
          }
        });
      for (const [name, args] of Object.entries(ADVANTAGE_ARGUMENTS))
        it(`advantage ${name}`, async () => {
          for (const given of [{}, ...fc.sample(args, { seed: 5, numRuns: 2 })])
            for (const mask of ['emptyrows', 'zero'] as const)
              for (const perToken of [true, false]) {
                const on = testedAdvantage(name, given, perToken);
                await assertAgrees(on, 'advantage', on.draw({ ...SMALL, mask }));
              }
        });
    });
}

const ALL_BUT_THREADS = ['layout', 'columns', 'masked', 'gradients', 'parts', 'call', 'memory'] as const;

/** Asserts that every function gives the same bits in every form of a call. */
export function describeBits(): void {
  describe('matrix: the same bits in any form', () => {
    after(() => setThreads(cpus().length));
    const seen = new Set<string>();
    everyTested().forEach((on, i) => {
      const { family, name, title } = on;
      const isFirst = !seen.has(`${family} ${name}`);
      seen.add(`${family} ${name}`);
      it(title, async () => {
        // All forms of short rows are tested below, so the other aggregations of a function have one value of each axis.
        const some = variations(on, ALL_BUT_THREADS, { seed: i, combined: 1, brief: ALL_BUT_THREADS });
        const all = isFirst ? variations(on, ALL_BUT_THREADS, { seed: i, combined: 3 }) : some;
        await assertForms(on, on.draw(EDGE_LENGTHS), all, 'mask random');
        for (const mask of isFirst ? (['emptyrows', 'ones', 'zero'] as const) : (['emptyrows'] as const))
          await assertForms(on, on.draw({ ...EDGE_LENGTHS, mask }), some, `mask ${mask}`);
      });
      if (!isFirst) return;
      it(`${title}: long rows, and any number of threads`, async () => {
        const long = on.draw(family === 'advantage' ? LONG_OF_ADVANTAGES : LONG);
        const brief = { seed: i, combined: 2, brief: ALL_BUT_THREADS };
        await assertForms(on, long, variations(on, [...ALL_BUT_THREADS, 'threads'], brief), 'long rows');
        await assertForms(on, on.draw(WIDE), variations(on, ['threads', 'call'], brief), 'wide rows');
      });
      if (on.axes.includes('gradients') || family === 'advantage')
        it(`${title}: masks that end early`, async () => {
          for (const [what, batch] of batchesWithEnds(on)) {
            const brief = batch.columns > 10_000 ? (['masked'] as const) : [];
            const forms = variations(on, ['masked', 'memory'], { seed: i, combined: 1, brief });
            await assertForms(on, batch, forms, what);
            if (!isLossFamily(family) || batch.columns > 10_000) continue;
            if (!isOnEdge(family, name, on.args, batch)) await assertAgrees(on, family, batch);
          }
        });
    });
  });

  describe('matrix: the same bits of short rows in any form', () => {
    const all = [
      ...everyFunction(3).map(({ family, name, args, title }) =>
        tested(family, name, divisible(name, args), title),
      ),
      ...drawnObjectives(100),
      ...drawnExpressions(60),
    ];
    all.forEach((on, i) => {
      it(on.title, async () => {
        await assertForms(
          on,
          on.draw(SMALL),
          variations(on, ALL_BUT_THREADS, { seed: i, combined: 2 }),
          'mask random',
        );
        const some = variations(on, ALL_BUT_THREADS, { seed: i, combined: 1, brief: ALL_BUT_THREADS });
        for (const mask of ['emptyrows', 'zero'] as const)
          await assertForms(on, on.draw({ ...SMALL, mask }), some, `mask ${mask}`);
        if (on.family === 'expression')
          assert.equal(on.sync(layOut(on.draw({ ...SMALL, mask: 'zero' }))).numbers[LOSS], 0);
      });
    });
  });
}

/** Rows that fill several steps of 256 tokens, and that begin and end within steps. */
const WHOLE_ROWS = {
  ...EDGE_LENGTHS,
  rows: 6,
  rowLengths: [256, 255, 1, 700, 257, 2100],
  mask: 'ones',
} as const;
/** Rows that are so different that the warps of a block are at different segments of a program at the same time. */
const UNLIKE_ROWS = { ...EDGE_LENGTHS, rows: 4, rowLengths: [1, 4000, 40, 4000], mask: 'ones' } as const;
const ON_DEVICE: Form = { ...BASE, device: 'cuda:0' };

/**
 * Asserts that a device computes the same bits per token as the CPU. Processors without fused multiply-adds are left out,
 * because their results differ in the last bit.
 */
export function describeBitsOnDevice(): void {
  describe('matrix: the same bits on the CPU and on a device', () => {
    before(function () {
      if (devices()[0]!.isa === 'sse4') this.skip();
    });
    const spec = (of: object) => ({ ...EDGE_LENGTHS, ...of, rowLengths: [...(of as BatchSpec).rowLengths!] });
    const seen = new Set<string>();
    // With the arguments of a second sample, programs have other segments that are compiled.
    const second = oneOfEach(1).map(({ family, name, args, title }) => tested(family, name, args, title));
    const all = [...everyTested(), ...second];
    all.forEach((on, i) => {
      const { family, name, title } = on;
      const isFirst = !seen.has(`${family} ${name}`);
      seen.add(`${family} ${name}`);
      const isNew = isFirst || second.includes(on);
      it(title, async () => {
        const uploaded: Form = { ...ON_DEVICE, device: on.hostOnly ? 'cuda:0' : 'uploaded' };
        const further: Form[] = isNew ? [{ ...ON_DEVICE, layout: 0 }, uploaded] : [];
        await assertForms(on, on.draw(EDGE_LENGTHS), [ON_DEVICE, ...further], 'edges');
        const short = variations(on, OF_DEVICES, {
          seed: i,
          combined: isFirst ? 2 : 1,
          brief: isFirst ? [] : OF_DEVICES,
          base: ON_DEVICE,
        });
        await assertForms(on, on.draw(SMALL), isFirst ? short : short.slice(-1), 'short rows');
      });
      if (family !== 'policy' || !isNew) return;
      if (isFirst)
        it(`${title}, without masked tokens`, async () => {
          const batch = on.draw(spec(WHOLE_ROWS));
          const halves = AXES.columns.map((columns) => ({ ...ON_DEVICE, columns }));
          await assertForms(on, batch, [ON_DEVICE, ...halves], 'whole rows');
          const advantages = WHOLE_ROWS.rowLengths.slice(0, batch.rows).map((n) => n / 700 - 1);
          if (POLICY_LOSS_FN.get(name).declaration!.reads.includes('advantages'))
            await assertForms(on, { ...batch, advantages }, [ON_DEVICE], 'an advantage per row');
        });
      if (isEmulated)
        it(`${title}, while warps are at different segments`, async () => {
          const forms = ['1', '2', '3'].map((warps): Form => ({ ...ON_DEVICE, warps }));
          await assertForms(on, on.draw(spec(UNLIKE_ROWS)), forms, 'unlike rows');
        });
    });
  });
}

/** Asserts that a batch without a mask is computed as one in which no token is masked. */
export function describeUnmasked(place: Place): void {
  describe(`matrix: batches without a mask on ${place}`, () => {
    for (const on of [...everyName(), ...algorithms()])
      it(`${on.family} ${on.name}`, async () => {
        const masked = layAny(on.draw({ ...SMALL, mask: 'ones' }));
        const bare = without(masked, 'actionMask');
        assertEqual(await everywhere(on, bare, place), await everywhere(on, masked, place));
        if (on.parts) assert.deepEqual(on.parts.count(bare), on.parts.count(masked));
      });
  });
}

const SHAPES = [
  { shape: [0, 5] as const },
  // Pairs have two rows, and those of TPO three.
  { shape: [6, 0] as const },
  { shape: [0, 0] as const },
  { cuSeqlens: Int32Array.of(0) },
  { cuSeqlens: new Int32Array(7) },
];
/** The losses that are not 0 without tokens: each pair has a margin of 0, and each row of FlowRL has a reward. */
const NOT_ZERO = /(dpo|cpo|orpo|tpo|xpo|kto|bco|simpo)$|\/reward/;

/** Asserts that batches without tokens give zeros and empty arrays, and no NaN. */
export function describeEmpty(): void {
  describe('matrix: batches without rows, columns or tokens', () => {
    for (const on of [...everyName(), ...algorithms()])
      it(`${on.family} ${on.name}`, async () => {
        for (const layout of SHAPES) {
          const rows = layout.shape ? layout.shape[0] : layout.cuSeqlens.length - 1;
          const what = JSON.stringify(layout);
          const result = await within(what, () =>
            everywhere(on, emptyBatch(layout, rows, on.family === 'advantage' ? 1 : 0), 'cpu'),
          );
          for (const [key, value] of Object.entries(result.numbers)) {
            assert.ok(Number.isFinite(value), `${key} is ${value} for ${what}`);
            if (rows === 0 && on.family === 'advantage') assert.equal(value, 0, key);
          }
          if (!(rows > 0 && NOT_ZERO.test(on.name)) && on.family !== 'objective')
            assert.equal((result.numbers[LOSS] ?? 0) + 0, 0, what);
          for (const [key, values] of Object.entries(result.tokens))
            assert.equal((values as Float32Array).length, 0, key);
          if (result.rows.keptRows) assert.deepEqual(result.rows.keptRows, new Uint8Array(rows).fill(1));
        }
      });
  });
}

/** Returns a batch of no tokens that has all columns. */
function emptyBatch(layout: object, rows: number, ofRow: number): Batch {
  // Losses of rows refuse weights of tokens.
  const floats = FLOAT_COLUMNS.filter((name) => name !== 'tokenWeights');
  const perToken = [...floats, 'tokenLevelRewards', 'sumPiSquared', 'rolloutIsWeights'];
  return {
    ...layout,
    ...Object.fromEntries(perToken.map((key) => [key, new Float32Array(0)])),
    ...Object.fromEntries(
      [...ROW_COLUMNS, 'rewardBaselines'].map((key) => [key, new Float64Array(rows).fill(ofRow)]),
    ),
    actionMask: new Uint8Array(0),
    attentionMask: new Uint8Array(0),
    ...Object.fromEntries(['sampleMask', 'label', 'chosen'].map((key) => [key, new Uint8Array(rows)])),
    klLogprob: new Float32Array(0),
    klRefLogprob: new Float32Array(0),
    expertMask: new Uint8Array(rows),
    groupIds: new Int32Array(rows),
    runIds: new Int32Array(rows),
    step: 1,
  };
}
