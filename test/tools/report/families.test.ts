/** Tests what a report shows of losses of pairs, of values and of rewards. */
import assert from 'node:assert/strict';
import {
  type ReportSubject,
  StatisticsCollector,
  statisticsFrom,
  statisticsToJson,
} from '../../../lib/tools/cli/report/index.js';
import { Fields } from '../../../lib/tools/parts/fields.js';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { builderOf, madeSubject, partOf } from './support.js';

/** Returns a part of rows with the given lengths, and with further columns. */
function partWith(lengths: readonly number[], columns: object, mask?: number[]): RolloutPart {
  const part = partOf(lengths.map((length) => ({ logprobs: new Array<number>(length).fill(-1) })));
  return {
    ...part,
    batch: {
      ...part.batch,
      ...(mask && { actionMask: Uint8Array.from(mask) }),
      ...columns,
    } as RolloutPart['batch'],
  };
}

/** Returns the page of a subject whose gradients are 1, and its statistics after a round trip as JSON. */
function pageOf(subject: ReportSubject, parts: readonly RolloutPart[]) {
  const result = { loss: 1, metrics: {}, gradNorm: 1 };
  const builder = builderOf([subject]);
  const collector = new StatisticsCollector([subject]);
  for (const part of parts) {
    const length = subject.variable === 'rewards' ? part.rows : part.batch.actionMask.length;
    const results = [{ grad: new Float32Array(length).fill(1) }];
    builder.add(part, results);
    collector.add(part, results);
  }
  const json = JSON.parse(JSON.stringify(statisticsToJson(collector.statistics)));
  const again = statisticsFrom(new Fields('a.part', json), 1);
  assert.deepEqual(JSON.parse(JSON.stringify(statisticsToJson(again))), json);
  return { page: builder.finish([result]), statistics: again };
}

/** Returns the figure with a title, without tags. */
function figure(page: string, title: string): string {
  const found = page.split('<figure').find((text) => text.includes(`>${title}</h3>`));
  assert.ok(found, title);
  return found.replace(/<[^>]*>/g, ' ');
}

const sections = (page: string) => [...page.matchAll(/<section id="(\w+)"/g)].map(([, id]) => id);

describe('a report', () => {
  it('shows the margins of pairs of rows instead of ratios', () => {
    const columns = {
      logprob: Float32Array.of(-1, -2, -1, -3, -1, -7, -2, -1, -1),
      refLogprob: Float32Array.of(-2, -2, -2, -1, -1, -9, -1, -4, -1),
      oldLogprob: new Float32Array(9),
    };
    const part = partWith([2, 1, 3, 3], columns, [1, 1, 1, 1, 1, 0, 1, 1, 1]);
    // The chosen rows have 1 and −2 more than the reference, and the rejected ones 1 and 2.
    const relative = { ...madeSubject('a'), margins: { beta: 0.5, isRelative: true } };
    const { page, statistics } = pageOf(relative, [part, part]);
    const margins = statistics.subjects[0]!.margins!;
    assert.deepEqual([margins.count, margins.min, margins.max], [4, -2, 0]);
    assert.match(figure(page, 'Reward margin'), /Above 0 in 0% of the pairs\./);
    assert.equal(statistics.logRatios, undefined);
    assert.ok(!/<h[23][^>]*>[^<]*ratio/i.test(page));
    assert.deepEqual(sections(page), ['metrics', 'distributions', 'rollouts', 'findings']);
    // The reference's sums: −4, −2, −2 and −6.
    const { refLogprob: _, ...others } = columns;
    const sums = { ...others, refLogps: Float64Array.of(-4, -2, -2, -6) };
    const { statistics: ofSums } = pageOf(relative, [
      partWith([2, 1, 3, 3], sums, [1, 1, 1, 1, 1, 0, 1, 1, 1]),
    ]);
    assert.deepEqual([ofSums.subjects[0]!.margins!.min, ofSums.subjects[0]!.margins!.max], [-2, 0]);
    // Without the reference: −3 against −1, and −4 against −4.
    const { page: plain, statistics: absolute } = pageOf(
      { ...madeSubject('a'), margins: { beta: 1, isRelative: false } },
      [part],
    );
    assert.deepEqual([absolute.subjects[0]!.margins!.min, absolute.subjects[0]!.margins!.max], [-2, 0]);
    assert.match(plain, /β\(z of chosen − z of rejected\)/);
  });

  it('shows the margins of rewards, and no tokens', () => {
    const rewards = Float64Array.of(2, 1, 0, 0.5, 3, 1, 1, 1);
    const subject = {
      ...madeSubject('a'),
      variable: 'rewards' as const,
      margins: { beta: 1, isRelative: false },
    };
    const { page, statistics } = pageOf(subject, [partWith([0, 0, 0, 0, 0, 0, 0, 0], { rewards })]);
    const { margins, gradients } = statistics.subjects[0]!;
    assert.deepEqual([margins!.count, margins!.min, margins!.max, margins!.positives], [4, -0.5, 2, 2]);
    assert.equal(gradients.count, 8);
    assert.match(figure(page, 'Reward margin'), /Above 0 in 50% of the pairs\./);
    assert.match(figure(page, 'Gradient'), /All rollouts: 1/);
    assert.match(page, /∂loss\/∂rewards/);
    assert.deepEqual(sections(page), ['metrics', 'distributions', 'findings']);
    assert.doesNotMatch(page, /href="#(rollouts|curves)"/);
  });

  it('shows the errors of values, and how much of the variance of the returns they explain', () => {
    const columns = {
      values: Float32Array.of(1, 2, 50, 3, 5),
      returns: Float32Array.of(0, 3, -50, 3, 6),
    };
    const subject = { ...madeSubject('a'), variable: 'values' as const };
    const part = partWith([3, 2], columns, [1, 1, 0, 1, 1]);
    const { page, statistics } = pageOf(subject, [part, part]);
    const { errors, values, returns } = statistics.values!;
    assert.deepEqual([errors.count, errors.min, errors.max], [8, -1, 1]);
    assert.deepEqual([values.min, values.max, returns.min, returns.max], [1, 5, 0, 6]);
    // The returns 0, 3, 3, 6 have the variance 18/4, and the errors 1, −1, 0, −1 have 11/16.
    assert.match(figure(page, 'Value error'), /Explained variance 0\.847\./);
    assert.match(page, /Colours show ∂loss\/∂values\. A negative gradient pushes a token’s value up/);
    assert.deepEqual(sections(page), ['metrics', 'distributions', 'rollouts', 'findings']);
    const equal = partWith([2], { values: Float32Array.of(1, 2), returns: Float32Array.of(3, 3) });
    assert.match(figure(pageOf(subject, [equal]).page, 'Value error'), /All returns are equal\./);
  });
});
