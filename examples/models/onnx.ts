// Computes GRPO and its gradient from the logits of an ONNX model: npx tsx onnx.ts
//
// ONNX Runtime runs the model on the prompts and responses of examples/rollouts.jsonl ("teacher forcing"). This package
// reads the logits where ONNX Runtime left them, in float32 and in float16. The model is that of character-model.ts. Its
// log-probabilities are compared with those that character-model.ts computes in float64.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { ALGORITHM_TYPE, type Logits } from 'policy-loss';
import { type CharacterModel, idsOf, logprobOf } from './character-model.js';
import { type DType, ROLLOUTS, writeModels } from './write-onnx.js';

const folder = mkdtempSync(join(tmpdir(), 'policy-loss-onnx-'));
try {
  const { model, files } = writeModels(folder);
  for (const [dtype, file] of Object.entries(files) as [DType, string][]) {
    console.log(`${dtype} logits`);
    for (const [name, value] of Object.entries(await evaluate(model, file)))
      console.log(`  ${name}: ${value}`);
  }
} finally {
  rmSync(folder, { recursive: true });
}

/** Computes GRPO for the rollouts with the model in a file. */
async function evaluate(model: CharacterModel, file: string): Promise<Record<string, number>> {
  const { B, T, ids, targets, batch } = layOut(model);
  const session = await InferenceSession.create(file);
  const outputs = await session.run({ ids: new Tensor('int64', ids, [B, T]) });
  const logits = logitsOf(outputs.logits!);

  const objective = ALGORITHM_TYPE.get('grpo').objective({ kl_loss_fn_args: { kl_coef: 0.001 } });
  const { loss, metrics, logprob, gradLogits } = await objective.fromLogits(
    { ...batch, logits, targets },
    { gradLogits: true },
  );
  await session.release();

  const expected = logprobsInFloat64(model, T);
  const differences = [...expected].map(([at, value]) => Math.abs(logprob[at]! - value));
  const mean = (numbers: number[]) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
  return {
    loss,
    pg_clipfrac: metrics.pg_clipfrac!,
    'mean log-probability': mean([...expected.keys()].map((at) => logprob[at]!)),
    'mean log-probability in the file': mean(ROLLOUTS.flatMap((rollout) => rollout.logprobs)),
    'largest difference from float64': differences.reduce((a, b) => Math.max(a, b)),
    'largest number of the gradient': (gradLogits as Float32Array).reduce(
      (most, g) => Math.max(most, Math.abs(g)),
      0,
    ),
  };
}

/** Returns a model's logits for this package, in the memory in which ONNX Runtime left them. */
function logitsOf({ type, data }: Tensor): Logits {
  if (type === 'float32') return data as Float32Array;
  // ONNX Runtime gives float16 numbers as a Float16Array where JavaScript has it, and their bits otherwise.
  const { buffer, byteOffset, length } = data as Uint16Array;
  return { data: new Uint16Array(buffer, byteOffset, length), dtype: 'float16' };
}

/**
 * Lays the rollouts out as B rows that are padded to T tokens. The model's logits at a position are those of the next
 * token, so position t has the token t of the text as its input, and everything about the token t + 1.
 */
function layOut(model: CharacterModel) {
  const [B, T] = [ROLLOUTS.length, Math.max(...ROLLOUTS.map(lengthOf)) - 1];
  const ids = new BigInt64Array(B * T);
  const targets = new Int32Array(B * T).fill(-100);
  const oldLogprob = new Float32Array(B * T);
  const refLogprob = new Float32Array(B * T);
  ROLLOUTS.forEach((rollout, b) => {
    const text = idsOf(model, rollout.prompt + rollout.response);
    const first = b * T + rollout.prompt.length - 1; // where the first token of the response is predicted
    ids.set(text.slice(0, -1).map(BigInt), b * T);
    targets.set(text.slice(rollout.prompt.length), first);
    oldLogprob.set(rollout.old_logprobs, first);
    refLogprob.set(rollout.ref_logprobs, first);
  });
  const batch = {
    shape: [B, T] as const,
    oldLogprob,
    refLogprob,
    actionMask: Uint8Array.from(targets, (target) => Number(target !== -100)),
    rewards: ROLLOUTS.map(({ reward }) => reward),
    groupIds: ROLLOUTS.map(({ task_id }) => task_id),
  };
  return { B, T, ids, targets, batch };
}

/** Computes the log-probability of every response token without ONNX Runtime. The keys are positions among B×T. */
function logprobsInFloat64(model: CharacterModel, T: number): Map<number, number> {
  return new Map(
    ROLLOUTS.flatMap(({ prompt, response }, b) => {
      const text = idsOf(model, prompt + response);
      return text
        .slice(prompt.length)
        .map((id, i): [number, number] => [
          b * T + prompt.length - 1 + i,
          logprobOf(model, text.slice(0, prompt.length + i), id),
        ]);
    }),
  );
}

function lengthOf({ prompt, response }: { prompt: string; response: string }): number {
  return prompt.length + response.length;
}
