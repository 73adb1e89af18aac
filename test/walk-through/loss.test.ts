// Tests the steps of CONTRIBUTING.md for a loss that is an expression. They need no native build.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { ChangedTree, ROOT } from './changed-tree.js';

describe('adding a loss', () => {
  let tree: ChangedTree;

  before(() => {
    const native = process.env.POLICY_LOSS_NATIVE ?? join(ROOT, 'build/Release/policy_loss.node');
    tree = new ChangedTree('Adding a loss', { POLICY_LOSS_NATIVE: native });
  });

  after(() => tree.remove());

  it('changes four files', () => assert.equal(tree.touched.size, 4));

  it('passes the type check', () => {
    tree.run('npm', 'run', 'build:ts');
    tree.run('npx', 'tsc', '-p', '.');
  });

  it('passes the suites that cover every registered function', () => {
    const suites = ['base/registry', 'matrix/golden', 'matrix/reference', 'matrix/bits', 'matrix/parts'];
    assert.match(tree.mocha(suites, '--grep', 'damped_pg'), /damped_pg[\s\S]* [1-9]\d* passing/);
  });

  it('shows the loss in `list`', () =>
    assert.match(tree.run('npx', 'tsx', 'lib/tools/cli/main.ts', 'list', 'damped_pg'), /beta/)).timeout(
    60_000,
  );
});
