// The statistics of a report as JSON, and back, for the parts of a plan. What is read is checked, because a part may come
// from anybody.
import type { ExactSum } from '../../../base/exact-sum.js';
import { encodeNumbers, type Fields, placeFrom } from '../../parts/fields.js';
import { noStatistics, noValues } from './collect.js';
import { type Excerpt, type ExtremeRow, type Extremes, MAX_TOKENS } from './extremes.js';
import { Sketch } from './sketch.js';
import { type DataStatistics, VALUE_SUMS, type ValueStatistics } from './statistics.js';

/** Returns statistics as an object that JSON can hold. */
export function statisticsToJson(statistics: DataStatistics): object {
  const { logRatios, rowLogRatios, values, extremes, subjects, ...rest } = statistics;
  return {
    ...rest,
    ...(logRatios && rowLogRatios && { logRatios: logRatios.toJson(), rowLogRatios: rowLogRatios.toJson() }),
    ...(values && { values: valuesToJson(values) }),
    extremes: extremes.rows.map(rowToJson),
    subjects: subjects.map(({ gradients, margins, advantages, extremes }) => ({
      gradients: gradients.toJson(),
      ...(margins && { margins: margins.toJson() }),
      advantages: advantages.toJson(),
      extremes: extremes.rows.map(rowToJson),
    })),
  };
}

/**
 * Returns the statistics that statisticsToJson() converted.
 * @param subjects the number of losses and algorithms.
 * @throws LossError `ERR_INVALID_INPUT` if a field is not as expected.
 */
export function statisticsFrom(fields: Fields, subjects: number): DataStatistics {
  const statistics = noStatistics(subjects);
  statistics.rows = fields.count('rows');
  statistics.tokens = fields.count('tokens');
  statistics.masked = fields.count('masked');
  statistics.characterwise = fields.flag('characterwise');
  if (fields.has('logRatios')) {
    statistics.logRatios = Sketch.from(fields.object('logRatios'));
    statistics.rowLogRatios = Sketch.from(fields.object('rowLogRatios'));
  }
  if (fields.has('values')) statistics.values = valuesFrom(fields.object('values'));
  rowsInto(statistics.extremes, fields, 'extremes');
  const ofSubjects = fields.list('subjects', (item, name) => item.object(name));
  if (ofSubjects.length !== subjects)
    throw fields.error('subjects', `the statistics of ${subjects} functions`, String(ofSubjects.length));
  statistics.subjects.forEach((subject, i) => {
    const given = ofSubjects[i]!;
    subject.gradients.merge(Sketch.from(given.object('gradients')));
    if (given.has('margins')) subject.margins = Sketch.from(given.object('margins'));
    subject.advantages.merge(Sketch.from(given.object('advantages')));
    rowsInto(subject.extremes, given, 'extremes');
  });
  return statistics;
}

/** Adds the statistics of rows that follow those of `all`. */
export function mergeStatistics(all: DataStatistics, more: DataStatistics): void {
  all.rows += more.rows;
  all.tokens += more.tokens;
  all.masked += more.masked;
  all.characterwise &&= more.characterwise;
  if (more.logRatios && more.rowLogRatios) {
    all.logRatios ??= new Sketch();
    all.logRatios.merge(more.logRatios);
    all.rowLogRatios ??= new Sketch();
    all.rowLogRatios.merge(more.rowLogRatios);
  }
  if (more.values) {
    all.values ??= noValues();
    mergeValues(all.values, more.values);
  }
  for (const row of more.extremes.rows) all.extremes.insert(row);
  all.subjects.forEach((subject, i) => {
    const { gradients, margins, advantages, extremes } = more.subjects[i]!;
    subject.gradients.merge(gradients);
    if (margins) {
      subject.margins ??= new Sketch();
      subject.margins.merge(margins);
    }
    subject.advantages.merge(advantages);
    for (const row of extremes.rows) subject.extremes.insert(row);
  });
}

const VALUE_SKETCHES = ['values', 'returns', 'errors'] as const;

function valuesToJson(values: ValueStatistics): object {
  const sums = VALUE_SUMS.map((name) => [name, encodeNumbers(Float64Array.from(values.sums[name].partials))]);
  return {
    ...Object.fromEntries(VALUE_SKETCHES.map((name) => [name, values[name].toJson()])),
    sums: Object.fromEntries(sums),
  };
}

function valuesFrom(fields: Fields): ValueStatistics {
  const values = noValues();
  for (const name of VALUE_SKETCHES) values[name].merge(Sketch.from(fields.object(name)));
  const sums = fields.object('sums');
  for (const name of VALUE_SUMS) {
    const partials = sums.float64(name);
    const other = partials.find((x) => !Number.isFinite(x));
    if (other !== undefined) throw sums.error(name, 'finite numbers', String(other));
    addAll(values.sums[name], partials);
  }
  return values;
}

function mergeValues(all: ValueStatistics, more: ValueStatistics): void {
  for (const name of VALUE_SKETCHES) all[name].merge(more[name]);
  for (const name of VALUE_SUMS) addAll(all.sums[name], more.sums[name].partials);
}

function addAll(sum: ExactSum, terms: Iterable<number>): void {
  for (const term of terms) sum.add(term);
}

function rowToJson({ score, reward, tokens, ...rest }: ExtremeRow): object {
  const { first, mask, logRatios, gradients, texts, characters } = tokens;
  return {
    ...rest,
    // JSON has no numbers for NaN and Infinity.
    score: encodeNumbers(Float64Array.of(score)),
    ...(reward !== undefined && { reward: encodeNumbers(Float64Array.of(reward)) }),
    tokens: {
      first,
      count: mask.length,
      mask: encodeNumbers(mask),
      ...(logRatios && { logRatios: encodeNumbers(logRatios) }),
      gradients: gradients.map(({ grad, advantages }) => ({
        grad: encodeNumbers(grad),
        ...(advantages && { advantages: encodeNumbers(advantages) }),
      })),
      ...(texts && { texts }),
      ...(characters && { characters }),
    },
  };
}

function rowsInto(extremes: Extremes, fields: Fields, key: string): void {
  for (const row of fields.list(key, (item, name) => rowFrom(item.object(name), extremes.subjects)))
    extremes.insert(row);
}

function rowFrom(fields: Fields, subjects: readonly number[]): ExtremeRow {
  const tokens = fields.object('tokens');
  const count = tokens.count('count', MAX_TOKENS);
  const length = fields.count('length');
  const first = tokens.count('first', length - count);
  const peak = fields.count('peak', first + count - 1);
  if (peak < first) throw fields.error('peak', `a token from ${first} on`, String(peak));
  const texts = (key: string) => {
    if (!tokens.has(key)) return undefined;
    const list = tokens.texts(key);
    if (list.length !== count) throw tokens.error(key, `${count} texts`, String(list.length));
    return list;
  };
  const gradients = tokens.list('gradients', (item, name) => {
    const given = item.object(name);
    return {
      grad: given.float32('grad', count),
      advantages: given.has('advantages') ? given.float32('advantages', count) : undefined,
    };
  });
  if (gradients.length !== subjects.length)
    throw tokens.error('gradients', `those of ${subjects.length} functions`, String(gradients.length));
  return {
    score: fields.float64('score', 1)[0]!,
    index: fields.count('index'),
    place: fields.has('place') ? placeFrom(fields.object('place')) : undefined,
    length,
    peak,
    reward: fields.has('reward') ? fields.float64('reward', 1)[0]! : undefined,
    prompt: fields.has('prompt') ? excerptFrom(fields.object('prompt')) : undefined,
    response: fields.has('response') ? excerptFrom(fields.object('response')) : undefined,
    tokens: {
      first,
      mask: tokens.uint8('mask', count),
      logRatios: tokens.has('logRatios') ? tokens.float32('logRatios', count) : undefined,
      gradients: gradients.map((each, i) => ({ subject: subjects[i]!, ...each })),
      texts: texts('texts'),
      characters: texts('characters'),
    },
  };
}

function excerptFrom(fields: Fields): Excerpt {
  return { text: fields.text('text'), omitted: fields.count('omitted') };
}
