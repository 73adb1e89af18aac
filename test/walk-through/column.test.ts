// Tests the step of CONTRIBUTING.md for a column. What the engine does with it would need a native build; its number in
// native code is compared instead.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { ChangedTree, ROOT } from './changed-tree.js';

// Prints what the package makes of a batch and of a rollout file with the column.
const USE = `
  const { BatchReader } = await import('./lib/batch/reader.ts');
  const { KeyMapper } = await import('./lib/batch/key-mapper.ts');
  const { takeNow } = await import('./lib/base/steps.ts');
  const { WEIGHTS_COLUMN } = await import('./lib/batch/columns.ts');
  const { readRollouts } = await import('./lib/tools/rollouts/index.ts');
  const { VALUES } = await import('./lib/program/symbols.ts');
  const reader = new BatchReader(KeyMapper.get('verl'), { inputs: ['logprob', 'draft_logprob'] });
  const batch = { shape: [1, 2], logprob: [-1, -2], draftLogprob: [-3, -4] };
  const [draft] = takeNow(reader.read(batch)).native.data.slice(14);
  const { batch: ofFile } = await readRollouts(['rollouts.jsonl']);
  console.log(JSON.stringify({
    draft: [...draft], weights: WEIGHTS_COLUMN, file: [...ofFile.draftLogprob], named: VALUES.has('draft'),
  }));
`;

describe('adding a column', () => {
  let tree: ChangedTree;

  before(() => {
    const native = process.env.POLICY_LOSS_NATIVE ?? join(ROOT, 'build/Release/policy_loss.node');
    tree = new ChangedTree('Adding a column', { POLICY_LOSS_NATIVE: native });
  });

  after(() => tree.remove());

  it('changes one file', () => assert.deepEqual([...tree.touched], ['lib/batch/columns.ts']));

  it('passes the type check', () => {
    tree.run('npm', 'run', 'build:ts');
    tree.run('npx', 'tsc', '-p', '.');
    assert.match(
      tree.read('dist/types/lib/batch/batch.d.ts'),
      /under the draft model\. \*\/\n +draftLogprob\?:/,
    );
  });

  it('is read from batches, rollout files and expressions', () => {
    tree.write('rollouts.jsonl', '{"logprobs": [-1, -2], "draft_logprobs": [-5, -6]}\n');
    tree.write('use.mts', USE);
    assert.deepEqual(JSON.parse(tree.run('npx', 'tsx', 'use.mts')), {
      draft: [-3, -4],
      weights: 13,
      file: [-5, -6],
      named: true,
    });
  });

  it('is in the native list, the help and docs/columns.md', () => {
    const pages =
      "import('./scripts/generate/native-columns.ts').then(({ nativeColumns }) => " +
      "import('./scripts/generate/columns-page.ts').then(({ columnsPage }) => console.log(nativeColumns(), columnsPage())))";
    const text = tree.run('npx', 'tsx', '-e', pages);
    assert.match(text, /kTokenWeights,\n {2}kDraftLogprob,\n\}/);
    assert.match(text, /\| `draftLogprob` \| `draft_logprob` \|/);
    assert.match(tree.run('npx', 'tsx', 'lib/tools/cli/main.ts', 'evaluate', '--help'), /draft_logprobs/);
  });
});
