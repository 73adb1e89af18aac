/**
 * Tests that the token segments of the package's losses are compiled ahead of time, and that the compiled loops compute
 * the same bits as the interpreter.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { NativeProgram, NativeProgramLossSpec } from '../../binding.js';
import { BatchReader, type InputName } from '../../lib/core/batch-reader.js';
import { Evaluator } from '../../lib/core/evaluator.js';
import { native } from '../../lib/core/native.js';
import { takeNow } from '../../lib/core/steps.js';
import { type Batch, KeyMapper, POLICY_LOSS_FN } from '../../lib/index.js';
import { compiledSegments, operandsOf, programsOf } from '../../scripts/generate/compiled-segments.js';
import { EDGE_LENGTHS, makeBatch, requiredArgs } from '../support/draw.js';
import { poison } from '../support/poison.js';
import { packedBatch, paddedBatch } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';

/** The losses that are programs, with default options. */
const losses = POLICY_LOSS_FN.names().flatMap((name) => {
  const args = requiredArgs(POLICY_LOSS_FN.get(name).declaration);
  const { reads } = POLICY_LOSS_FN.create(name, args);
  const inputs: InputName[] = [...reads.columns, ...reads.rowColumns, 'action_mask'];
  return programsOf(name, args).map((spec, i) => ({ name: `${name} #${i}`, inputs, spec }));
});

/** Returns a program that computes the same in other registers. No compiled segment equals one of its segments. */
function inOtherRegisters(program: NativeProgram): NativeProgram {
  const code = program.code.slice();
  const segments = native.programOps.slice(0, 3);
  let isOfTokens = false;
  for (let at = 0; at < code.length; at += 6) {
    const op = native.programOps[code[at]!]!;
    if (segments.includes(op)) isOfTokens = op === 'tokens';
    else if (isOfTokens) move(op, code.subarray(at + 1, at + 6));
  }
  return { ...program, code, registers: program.registers + 1 };
}

const SCANS = ['prefix_sum', 'suffix_sum', 'run_sum'];

/** Moves the registers of an instruction by one. `numbers` are its result and its operands. */
function move(op: string, numbers: Int32Array): void {
  const hasRegister = !/^(row_|loss|metric|grad)/.test(op) && !SCANS.includes(op);
  for (let i = hasRegister ? 0 : 1; i <= operandsOf(op); i++) if (numbers[i]! < 65536) numbers[i]! += 1;
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
 * more passes.
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
];

describe('compiled segments', () => {
  it('are the generated ones', () => {
    const file = new URL('../../native/program/compiled_segments.inc', import.meta.url);
    assert.equal(readFileSync(file, 'utf8'), compiledSegments(), 'stale: npm run generate');
  });

  const drawn = makeBatch(EDGE_LENGTHS);
  const batch = { ...drawn, clipCovKeys: drawn.logprob! };
  const batches = [poison(batch, Number.NaN), batch].flatMap((each) => [
    paddedBatch(each),
    packedBatch(each),
  ]);
  for (const { name, inputs, spec } of losses)
    it(`of ${name} compute the bits of the interpreter`, () => {
      const { withGrad } = spec.program;
      const other = { ...spec, program: { ...spec.program, withGrad: inOtherRegisters(withGrad) } };
      assert.equal(interpreted(spec, true), 0, 'instructions that the interpreter runs');
      assert.equal(interpreted(spec, false) > 0, CHEAPER_WITHOUT_GRAD.includes(name.replace(/ #.*/, '')));
      assert.ok(interpreted(other, true) > 0);
      for (const each of batches) {
        const compiled = compute(spec, inputs, each);
        const expected = compute(other, inputs, each);
        assertSameBits(compiled.result, expected.result);
        assert.deepStrictEqual(compiled.withoutGrad, expected.withoutGrad);
      }
    });
});
