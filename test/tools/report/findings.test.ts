/** Tests that a report links the doctor's findings to the rollouts that it shows, and the rollouts to the findings. */
import assert from 'node:assert/strict';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { builderOf, computed, exampleParts, lossSubject } from './support.js';

/** Returns the page of PPO on the example, in parts of this many tokens, with one positive log-probability in row 5. */
async function page(maxTokens?: number): Promise<string> {
  const [whole] = (await exampleParts()) as [RolloutPart];
  const [all] = computed(['ppo'], whole);
  const builder = builderOf([lossSubject('ppo')]);
  let start = 0;
  for (const part of await exampleParts(maxTokens)) {
    const { cuSeqlens, logprob } = part.batch;
    if (part.first <= 4 && part.first + part.rows > 4) logprob[cuSeqlens[4 - part.first]!] = 2;
    const end = start + logprob.length;
    builder.add(part, [
      {
        grad: all!.grad.slice(start, end),
        advantages: all!.advantages.slice(part.first, part.first + part.rows) as Float32Array,
      },
    ]);
    start = end;
  }
  return builder.finish([all!.result]);
}

describe('the findings in a report', () => {
  it('are linked to the rollouts that are shown, and the rollouts to them', async () => {
    const html = await page();
    // The positive log-probability makes the largest ratio, so its rollout is shown.
    const article = /<article class="rollout" id="rollout-5">.*?<\/article>/s.exec(html)![0];
    assert.match(
      article,
      /<p class="marks">Findings: .*<a href="#finding-positive-logprob" title="error">Log-probabilities are positive<\/a>/,
    );
    const finding = /<article class="finding" id="finding-positive-logprob">.*?<\/article>/s.exec(html)![0];
    assert.match(finding, /Shown above: <a href="#rollout-5">rollout 5<\/a>/);
    assert.match(finding, /Seen in 1 of 256 rows: .*, line 5\./);
  });

  it('have no link without a target, and no target twice', async () => {
    const html = await page();
    const ids = [...html.matchAll(/ id="((?:rollout|finding)-[^"]+)"/g)].map(([, id]) => id!);
    assert.equal(new Set(ids).size, ids.length);
    const links = [...html.matchAll(/href="#((?:rollout|finding)-[^"]+)"/g)].map(([, id]) => id!);
    assert.ok(links.length > 3);
    for (const link of links) assert.ok(ids.includes(link), link);
  });

  it('do not depend on the division into parts', async () => {
    assert.equal(await page(900), await page());
  });

  it('name the checks that the columns of the report do not suffice for', async () => {
    assert.match(
      await page(),
      /<summary>\d+ checks could not run<\/summary>\s*<ul><li>without <code>rollout_logprobs<\/code>/,
    );
  });
});
