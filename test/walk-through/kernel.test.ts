// Tests the steps of CONTRIBUTING.md for a hand-written kernel, which need a native build.
import assert from 'node:assert/strict';
import { ChangedTree } from './changed-tree.js';

describe('adding a kernel', () => {
  let tree: ChangedTree;

  before(() => {
    // The copy must load the native module that is built in it.
    tree = new ChangedTree('Adding a kernel', { POLICY_LOSS_NATIVE: undefined });
    tree.run('npx', 'cmake-js', 'build', '--runtime', 'node', '--CDPOLICY_LOSS_CUDA=OFF');
    tree.run('npx', 'tsx', 'scripts/generate/generate.ts', '--tokens', '100');
  });

  after(() => tree.remove());

  it('changes or creates six files', () => assert.equal(tree.touched.size, 6));

  it('passes the type check', () => {
    tree.run('npm', 'run', 'build:ts');
    tree.run('npx', 'tsc', '-p', '.');
  });

  it('passes the suites that cover every registered function', () => {
    const suites = ['base/registry', 'losses/generated', 'matrix/golden'];
    assert.match(tree.mocha(suites), /ratio_penalty/);
    // These suites take minutes for all functions, and the others have already passed them.
    for (const suite of ['matrix/reference', 'matrix/bits', 'matrix/parts', 'losses/numerics'])
      assert.match(tree.mocha([suite], '--grep', 'ratio_penalty'), /ratio_penalty[\s\S]* [1-9]\d* passing/);
  });

  it('shows the loss in `list`, docs/functions.md, docs/numerics.md and the benchmarks', () => {
    assert.match(tree.run('npx', 'tsx', 'lib/tools/cli/main.ts', 'list', 'ratio_penalty'), /beta/);
    for (const file of ['docs/functions.md', 'docs/numerics.md'])
      assert.match(tree.read(file), /`ratio_penalty`/, file);
    const works =
      "import('./bench/lib/works.ts').then(({ works }) => import('./lib/index.ts').then((api) => " +
      'console.log(works(api).map(({ id }) => id).join())))';
    assert.match(tree.run('npx', 'tsx', '-e', works), /\bratio_penalty\b/);
  });
});
