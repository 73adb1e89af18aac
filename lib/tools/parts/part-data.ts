// The data of part files as JSON, and back. What is read is checked, because a part may come from anybody.
import { native } from '../../base/native.js';
import type { Metrics, Normalizer } from '../../index.js';
import { SPREAD_LENGTH } from '../../losses/advantage-fn.js';
import type { ShardResult } from './evaluation.js';
import { columnsFrom, encodeNumbers, type Fields, placeFrom } from './fields.js';
import { type ProductSum, pairsOf } from './gradient-products.js';
import type { PlannedConfiguration } from './plan.js';
import type { RowValues } from './row-metrics.js';
import type { GroupInputs, NumberedIds, ShardCounts } from './shard-counts.js';
import type { ShardSubject } from './subject-result.js';

/** Returns counts as an object that JSON can hold. */
export function countsToJson(counts: ShardCounts): object {
  const { unmasked, expert, steps, groups, runs, inputs, spreads, ...rest } = counts;
  return {
    ...rest,
    unmasked: encodeNumbers(unmasked),
    ...(expert && { expert: encodeNumbers(expert) }),
    ...(steps && { steps: encodeNumbers(steps) }),
    ...(groups && { groups: idsToJson(groups) }),
    ...(runs && { runs: idsToJson(runs) }),
    inputs: Object.fromEntries(
      Object.entries(inputs).map(([key, { rewards, areSums, meanOldLogprobs, penalty }]) => [
        key,
        {
          rewards: encodeNumbers(rewards),
          areSums,
          ...(meanOldLogprobs && { meanOldLogprobs: encodeNumbers(meanOldLogprobs) }),
          penalty: rowValuesToJson(penalty),
        },
      ]),
    ),
    spreads: rowValuesToJson(spreads),
  };
}

/** Returns the counts that countsToJson() converted. */
export function countsFrom(fields: Fields, maxRows: number): ShardCounts {
  const rows = fields.count('rows', maxRows);
  const unmasked = fields.uint32('unmasked', rows);
  const tokens = fields.count('tokens');
  const sum = unmasked.reduce((total, n) => total + n, 0);
  if (tokens !== sum) throw fields.error('tokens', `${sum}, the sum over the rows`, String(tokens));
  const inputs = fields.record('inputs', (all, key) => inputsFrom(all.object(key), rows));
  const isComplete = fields.has('groups') || Object.keys(inputs).length === 0;
  if (!isComplete) throw fields.error('groups', 'the groups of the rows', 'nothing');
  return {
    rows,
    tokens,
    size: fields.number('size'),
    longestRow: fields.count('longestRow'),
    parts: fields.count('parts'),
    columns: columnsFrom(fields, 'columns'),
    ...(fields.has('obstacle') && { obstacle: fields.text('obstacle') }),
    ...(fields.has('first') && { first: placeFrom(fields.object('first')) }),
    unmasked,
    ...(fields.has('expert') && { expert: fields.uint8('expert', rows) }),
    ...(fields.has('steps') && { steps: fields.float64('steps', rows) }),
    ...(fields.has('groups') && { groups: idsFrom(fields.object('groups'), rows) }),
    ...(fields.has('runs') && { runs: idsFrom(fields.object('runs'), rows) }),
    inputs,
    spreads: fields.record('spreads', (all, key) => spreadsFrom(all, key, unmasked)),
  };
}

function spreadsFrom(fields: Fields, key: string, unmasked: Uint32Array): Float64Array {
  const spreads = fields.float64(key, SPREAD_LENGTH * unmasked.length);
  const row = unmasked.findIndex((tokens, row) => spreads[SPREAD_LENGTH * row] !== tokens);
  if (row >= 0)
    throw fields.error(key, `a row of ${unmasked[row]} tokens`, String(spreads[SPREAD_LENGTH * row]));
  return spreads;
}

function inputsFrom(fields: Fields, rows: number): GroupInputs {
  return {
    rewards: fields.float64('rewards', rows),
    areSums: fields.flag('areSums'),
    ...(fields.has('meanOldLogprobs') && { meanOldLogprobs: fields.float64('meanOldLogprobs', rows) }),
    penalty: rowValuesFrom(fields, 'penalty', rows),
  };
}

/** Returns ids as an object that JSON can hold. */
export function idsToJson({ numbers, ids }: NumberedIds): object {
  return {
    numbers: encodeNumbers(numbers),
    // JSON has no numbers for NaN and Infinity, which a file may have as ids.
    ids: ids.map((id) => (typeof id === 'string' || Number.isFinite(id) ? id : { number: String(id) })),
  };
}

/** Returns the ids that idsToJson() converted. */
export function idsFrom(fields: Fields, rows: number): NumberedIds {
  const ids = fields.list('ids', (item, name) => idFrom(item, name));
  const numbers = fields.int32('numbers', rows);
  const stray = numbers.find((number) => number < 0 || number >= ids.length);
  if (stray !== undefined)
    throw fields.error('numbers', `numbers from 0 to ${ids.length - 1}`, String(stray));
  return { numbers, ids };
}

function idFrom(item: Fields, name: 'value'): number | string {
  if (item.isText(name)) return item.text(name);
  if (item.isNumber(name)) return item.number(name);
  return Number(item.object(name).choice('number', ['NaN', 'Infinity', '-Infinity']));
}

/** Returns results as an object that JSON can hold. */
export function resultToJson({ subjects, products, ...rest }: ShardResult): object {
  return {
    ...rest,
    ...(products && { products: products.map(productSumToJson) }),
    subjects: subjects.map((subject) => {
      const { whole, parts, advantageMetrics, rowValues, squares, entropySquares, ...others } = subject;
      return {
        ...others,
        ...(whole && {
          whole: { loss: encodeNumbers(Float64Array.of(whole.loss)), metrics: metricsToJson(whole.metrics) },
        }),
        parts: parts.map(encodeNumbers),
        advantageMetrics: metricsToJson(advantageMetrics),
        rowValues: rowValuesToJson(rowValues),
        squares: productSumToJson(squares),
        ...(entropySquares && { entropySquares: productSumToJson(entropySquares) }),
      };
    }),
  };
}

/**
 * Returns the results that resultToJson() converted.
 * @param isOnly whether the plan has no other shard, so that its rows may have been computed as one batch.
 */
export function resultFrom(
  fields: Fields,
  { functions, maxRows, compares }: PlannedConfiguration,
  isOnly: boolean,
): ShardResult {
  const rows = fields.count('rows', maxRows);
  const subjects = fields.list('subjects', (item, name) => subjectFrom(item.object(name), rows, isOnly));
  const expected = rows > 0 ? functions.length : 0;
  if (subjects.length !== expected)
    throw fields.error('subjects', `the results of ${expected} functions`, String(subjects.length));
  return {
    rows,
    tokens: fields.count('tokens'),
    parts: fields.count('parts'),
    skipped: fields.count('skipped'),
    subjects,
    ...(compares && { products: productsFrom(fields, expected) }),
  };
}

function productsFrom(fields: Fields, subjects: number): ProductSum[] {
  const products = fields.list('products', productSumFrom);
  const { length } = pairsOf(subjects);
  if (products.length !== length)
    throw fields.error('products', `the products of ${length} pairs`, String(products.length));
  return products;
}

function subjectFrom(fields: Fields, rows: number, isOnly: boolean): ShardSubject {
  const whole = isOnly && fields.has('whole') && fields.object('whole');
  const parts = fields.list('parts', (item, name) => item.float64(name, native.partLength));
  if (whole ? parts.length > 0 : parts.length === 0 || !fields.has('normalizer'))
    throw fields.error(
      'parts',
      'the sums of parts with their normalizer, or the results of one batch',
      'neither',
    );
  return {
    ...(whole && {
      whole: { loss: whole.float64('loss', 1)[0]!, metrics: metricsFrom(whole, 'metrics') },
    }),
    parts,
    ...(fields.has('normalizer') && { normalizer: normalizerFrom(fields.object('normalizer')) }),
    advantageMetrics: metricsFrom(fields, 'advantageMetrics'),
    rowValues: rowValuesFrom(fields, 'rowValues', rows),
    squares: productSumFrom(fields, 'squares'),
    ...(fields.has('entropySquares') && { entropySquares: productSumFrom(fields, 'entropySquares') }),
    ...(fields.has('advantages') && { advantages: fields.text('advantages') }),
  };
}

function normalizerFrom(fields: Fields): Normalizer {
  const expert = fields.has('expert') && fields.object('expert');
  return {
    tokens: fields.count('tokens'),
    rows: fields.count('rows'),
    ...(fields.has('columns') && { columns: fields.count('columns') }),
    ...(expert && { expert: { tokens: expert.count('tokens'), rows: expert.count('rows') } }),
  };
}

function metricsToJson(metrics: Metrics): object {
  return { names: Object.keys(metrics), values: encodeNumbers(Float64Array.from(Object.values(metrics))) };
}

function metricsFrom(fields: Fields, key: string): Metrics {
  const metrics = fields.object(key);
  const names = metrics.texts('names');
  const values = metrics.float64('values', names.length);
  return Object.fromEntries(names.map((name, i) => [name, values[i]!]));
}

function rowValuesToJson(values: RowValues): object {
  return Object.fromEntries(Object.entries(values).map(([name, numbers]) => [name, encodeNumbers(numbers)]));
}

function rowValuesFrom(fields: Fields, key: string, rows: number): RowValues {
  const values = fields.record(key, (all, name) => all.float64(name, rows));
  const lone = Object.keys(values).find(
    (name) => name.endsWith('/std') && !values[name.replace(/std$/, 'mean')],
  );
  if (lone !== undefined) throw fields.error(key, `the mean of ${lone}`, 'nothing');
  return values;
}

function productSumToJson({ partials, nonFinite }: ProductSum): string {
  return encodeNumbers(Float64Array.from([nonFinite, ...partials]));
}

function productSumFrom(fields: Fields, key: string): ProductSum {
  const [nonFinite, ...partials] = fields.float64(key);
  if (nonFinite === undefined || partials.some((x) => !Number.isFinite(x)))
    throw fields.error(key, 'a sum of finite numbers', 'another');
  return { partials, nonFinite };
}
