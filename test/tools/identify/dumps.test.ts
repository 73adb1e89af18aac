/** Tests that the files of trainers, and the numbers that they logged, lead to the configuration that gave them. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type Candidate, identify } from '../../../lib/tools/identify/index.js';
import { expandFiles, type PackedRows, streamRollouts } from '../../../lib/tools/rollouts/index.js';

interface Truth {
  file: string;
  logged?: Record<string, number>;
  configuration?: {
    loss: string;
    options: Record<string, number>;
    loss_agg_mode: string;
    kl?: { kl_fn: string; kl_coef: number };
    micro_batches?: number;
    entropy_coef?: number;
    logprobs_from?: string;
    old_logprobs_from?: string;
  };
}

const path = (name: string) => fileURLToPath(new URL(`../rollouts/fixtures/dumps/${name}`, import.meta.url));
const TRUTH: Truth[] = JSON.parse(readFileSync(path('truth.json'), 'utf8'));

// The losses that compete. With all of them, the search finds the same, but it takes five times as long.
const LOSSES = [
  'ppo',
  'gspo',
  'cispo',
  'topr',
  'opmd',
  'importance_sampling',
  'verl/gpg',
  'trl/grpo',
  'ce_gppo',
];

describe('identify, on the files of trainers', () => {
  for (const { file, logged, configuration } of TRUTH) {
    if (!logged || !configuration) continue;
    it(file, async () => {
      const files = await expandFiles([path(file)]);
      for await (const { batch, places } of streamRollouts(files, { logprobs: 'optional', onWarning() {} })) {
        const { candidates } = await identify(batch as PackedRows, {
          logged,
          losses: LOSSES,
          files: places.flatMap(({ file }, row) => (file === places[row - 1]?.file ? [] : [row])),
          top: 1,
        });
        const found: Candidate | undefined = candidates.find((candidate) => isTrue(candidate, configuration));
        assert.ok(found, JSON.stringify(candidates.slice(0, 3)));
        assert.equal(found.matches, Object.keys(logged).length);
        // Nothing that meets fewer numbers shares the rank.
        for (const { matches } of candidates) assert.equal(matches, found.matches);
      }
    });
  }
});

function isTrue(
  { loss, options, undetermined, lossAggMode, kl, entropyCoef, microBatches, ...roles }: Candidate,
  truth: NonNullable<Truth['configuration']>,
): boolean {
  const { clip_range, ...own } = truth.options;
  const wanted = { ...own, ...(clip_range && { clip_range_low: clip_range, clip_range_high: clip_range }) };
  return (
    loss === truth.loss &&
    Object.entries(wanted).every(([name, value]) => options[name] === value || undetermined.includes(name)) &&
    lossAggMode === truth.loss_agg_mode &&
    kl?.fn === truth.kl?.kl_fn &&
    kl?.coef === truth.kl?.kl_coef &&
    entropyCoef === (truth.entropy_coef ?? 0) &&
    microBatches === (truth.micro_batches ?? 1) &&
    roles.logprobsFrom === (truth.logprobs_from ?? 'logprobs') &&
    roles.oldLogprobsFrom === (truth.old_logprobs_from ?? 'old_logprobs')
  );
}
