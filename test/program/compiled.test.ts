/**
 * Tests that the token segments of the package's losses are compiled ahead of time, and that the compiled loops compute
 * the same bits as the interpreter.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import type { NativeProgram, NativeProgramLossSpec } from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { takeNow } from '../../lib/base/steps.js';
import type { InputName } from '../../lib/batch/columns.js';
import { BatchReader } from '../../lib/batch/reader.js';
import { Evaluator } from '../../lib/call/evaluator.js';
import {
  type Batch,
  KeyMapper,
  LOSS_FN,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  VALUE_LOSS_FN,
  type ValueLossFn,
} from '../../lib/index.js';
import { compiledSegments } from '../../scripts/generate/compiled-segments.js';
import { nativeColumns } from '../../scripts/generate/native-columns.js';
import { programsOf } from '../../scripts/generate/token-segments.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { requiredArgs } from '../support/draw-arguments.js';
import { poison } from '../support/poison.js';
import { generator } from '../support/random.js';
import { packedBatch, paddedBatch } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';

/** The losses of tokens that are programs, with default options. */
const losses = [POLICY_LOSS_FN, VALUE_LOSS_FN]
  .flatMap((registry) => registry.names())
  .flatMap((name) => {
    const args = requiredArgs(LOSS_FN.get(name).declaration);
    const made = LOSS_FN.create(name, args) as PolicyLossFn | ValueLossFn;
    const { columns, rowColumns } = made.reads;
    // The column of losses that are made longer comes first.
    const inputs = [...new Set<InputName>(['logprob', ...columns, ...rowColumns, 'action_mask'])];
    return programsOf(name, args).map((spec, i) => ({ name: `${name} #${i}`, inputs, spec }));
  });

const [COLUMN, CONSTANT] = [1, 2];

/**
 * Returns a program that computes the same with more instructions: each value x that a token segment outputs, reduces or
 * scans becomes `logprob < logprob ? x : x`. No compiled segment computes that.
 */
function lengthened(program: NativeProgram): NativeProgram {
  const code: number[] = [];
  const choose = native.programOps.indexOf('select_lt');
  let isOfTokens = false;
  for (let at = 0; at < program.code.length; at += 6) {
    const instruction = [...program.code.subarray(at, at + 6)];
    const op = native.programOps[instruction[0]!]!;
    if (['tokens', 'row', 'batch'].includes(op)) isOfTokens = op === 'tokens';
    else if (isOfTokens && /^(row_|loss|metric|grad|(prefix|suffix|turn)_sum)/.test(op)) {
      code.push(choose, program.registers, COLUMN << 16, COLUMN << 16, instruction[2]!, instruction[2]!);
      instruction[2] = program.registers;
    }
    code.push(...instruction);
  }
  return { ...program, code: Int32Array.from(code), registers: program.registers + 1 };
}

/** Returns the program with one change to a token segment: another operation, or another operand. */
function mutated(program: NativeProgram, { uniform }: ReturnType<typeof generator>): NativeProgram {
  const code = program.code.slice();
  const pick = <T>(items: readonly T[]) => items[Math.floor(uniform() * items.length)];
  const starts = Array.from({ length: code.length / 6 }, (_, i) => 6 * i);
  const isOf = (at: number, names: RegExp) => names.test(native.programOps[code[at]!]!);
  const ofTokens = starts.filter((at) =>
    isOf(starts.findLast((x) => x <= at && isOf(x, SEGMENT))!, /^tokens$/),
  );
  const binary = pick(ofTokens.filter((at) => isOf(at, BINARY)));
  const constant = pick(
    ofTokens.flatMap((at) => [2, 3, 4, 5].map((k) => at + k).filter((x) => code[x]! >> 16 === CONSTANT)),
  );
  const change = pick(['operation', 'order', 'column', 'constant', 'constant']);
  if (change === 'constant' && constant !== undefined)
    code[constant] = (CONSTANT << 16) + Math.floor(uniform() * program.constants.length);
  if (binary === undefined) return { ...program, code };
  if (change === 'order') code.subarray(binary + 2, binary + 4).reverse();
  if (change === 'column') code[binary + 2] = COLUMN << 16;
  if (change === 'operation')
    code[binary] = native.programOps.indexOf(pick(BINARY.source.match(/[a-z]+/g)!)!);
  return { ...program, code };
}

const SEGMENT = /^(tokens|row|batch)$/;
const BINARY = /^(add|sub|mul|div|min|max|lt|le|eq)$/;

/** Returns the program with other values of those constants that a compiled segment takes as numbers. */
function withOtherConstants(spec: NativeProgramLossSpec): NativeProgramLossSpec {
  const { program } = spec;
  return program.withGrad.constants.reduce<NativeProgramLossSpec>((changed, value, i) => {
    const constants = changed.program.withGrad.constants.with(i, 1.25 * value + 0.125);
    const withGrad = { ...program.withGrad, constants };
    const other = { ...spec, program: { ...program, withGrad } };
    return interpreted(other, true) === 0 ? other : changed;
  }, spec);
}

/** Returns the result with and without a gradient. */
function compute(policyLoss: NativeProgramLossSpec, inputs: readonly InputName[], batch: Batch) {
  const evaluator = new Evaluator({ policyLoss }, new BatchReader(KeyMapper.get('verl'), { inputs }));
  const result = takeNow(evaluator.compute(batch, { grad: true }, () => ({})));
  const { loss, metrics } = takeNow(evaluator.compute(batch, {}, () => ({})));
  return { result: result as Parameters<typeof assertSameBits>[0], withoutGrad: { loss, metrics } };
}

const interpreted = (policyLoss: NativeProgramLossSpec, withGrad: boolean) =>
  native.interpretedInstructions(native.createFunction({ policyLoss }), withGrad);

/**
 * The losses that are interpreted if no gradient is wanted: their programs with a gradient have many more instructions or
 * more passes. The gradient of a clipped value needs more instructions than its loss, because it is halved where both
 * losses are equal. Without clipping, as in nemo/value and roll/value by default, it is one product.
 */
const CHEAPER_WITHOUT_GRAD = [
  'verl/sapo',
  'verl/flowrl',
  'verl/self_play_sppo',
  'verl/online_dpo',
  'trl/sapo',
  'trl/rloo',
  'trl/a2po',
  'segment_ppo',
  'real',
  ...['trl/value', 'openrlhf/value', 'skyrl/value', 'slime/value', 'miles/value'],
  ...['areal/value', 'rlinf/value', 'easyr1/value'],
  'trl/dpo',
  'trl/cpo',
  'trl/orpo',
  'trl/tpo',
  'trl/online_dpo',
  'trl/xpo',
  'trl/kto',
  'oat/dpo',
  'oat/simpo',
  'openrlhf/dpo',
  'openrlhf/kto',
  'openrlhf/vanilla_kto',
  'roll/dpo',
  'nemo/dpo',
  'areal/dpo',
  'tinker/dpo',
  'openinstruct/dpo',
  'llamafactory/dpo',
  'llamafactory/kto',
  'swift/dpo',
];
/** The loss that outputs a gradient by another column, which compiled segments lack. */
const INTERPRETED = ['oat/bnf'];

describe('compiled segments', () => {
  it('are the generated ones', () => {
    const folder = new URL('../../native/generated/', import.meta.url);
    const files = readdirSync(folder).map((name) => [name, readFileSync(new URL(name, folder), 'utf8')]);
    const expected = { 'columns.h': nativeColumns(), ...compiledSegments() };
    assert.deepEqual(Object.fromEntries(files), expected, 'stale: npm run generate');
  });

  const drawn = makeBatch({ ...EDGE_LENGTHS, weights: true });
  const { logprob, rewards } = drawn;
  const batch = {
    ...drawn,
    clipCovKeys: logprob!,
    answerMask: Array.from(logprob!, (_, i) => i % 3),
    refLogps: rewards!,
    klEstimate: Array.from(rewards!, () => 0.2),
  };
  const batches = [poison(batch, Number.NaN), batch].flatMap((each) => [
    paddedBatch(each),
    packedBatch(each),
  ]);
  for (const { name, inputs, spec } of losses)
    it(`of ${name} compute the bits of the interpreter`, () => {
      const other = asInterpreted(spec);
      const loss = name.replace(/ #.*/, '');
      if (INTERPRETED.includes(loss)) return;
      assert.equal(interpreted(spec, true), 0, 'instructions that the interpreter runs');
      assert.equal(interpreted(spec, false) > 0, CHEAPER_WITHOUT_GRAD.includes(loss));
      assert.ok(interpreted(other, true) > 0);
      for (const each of batches) {
        const compiled = compute(spec, inputs, each);
        const expected = compute(other, inputs, each);
        assertSameBits(compiled.result, expected.result);
        assert.deepStrictEqual(compiled.withoutGrad, expected.withoutGrad);
      }
    });

  const asInterpreted = (spec: NativeProgramLossSpec) => {
    const withGrad = lengthened(spec.program.withGrad);
    return { ...spec, program: { ...spec.program, withGrad } };
  };

  it('serve other values of options', () => {
    let changes = 0;
    for (const { inputs, spec } of losses) {
      const other = withOtherConstants(spec);
      const [before, after] = [spec, other].map(({ program }) => program.withGrad.constants);
      changes += after!.filter((value, i) => value !== before![i]).length;
      const { result } = compute(other, inputs, batches[0]!);
      assertSameBits(result, compute(asInterpreted(other), inputs, batches[0]!).result);
    }
    assert.ok(changes > 150, `${changes} constants are not part of a segment`);
  });

  it('are not run in the place of similar segments', () => {
    const random = generator(7);
    let unlike = 0;
    for (const { inputs, spec } of losses)
      for (let i = 0; i < 20; i++) {
        const withGrad = mutated(spec.program.withGrad, random);
        const other = { ...spec, program: { ...spec.program, withGrad } };
        unlike += interpreted(other, true) > 0 ? 1 : 0;
        const { result } = compute(other, inputs, batches[0]!);
        assertSameBits(result, compute(asInterpreted(other), inputs, batches[0]!).result);
      }
    assert.ok(unlike > 600, `${unlike} mutations have no compiled segment`);
  });
});
