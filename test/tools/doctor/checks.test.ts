/** Every check of the doctor finds its fault in a dump that has it, and nothing in dumps that are healthy. */
import assert from 'node:assert/strict';
import { CHECKS, type Diagnosis, type Finding, type Severity } from '../../../lib/tools/doctor/index.js';
import { generator } from '../../support/random.js';
import {
  bfloat16,
  changed,
  type DumpRow,
  diagnosed,
  drawnRows,
  realRows,
  withAdvantages,
} from './support.js';

const REAL = realRows();
const DRAWN = drawnRows();

/** A dump with a fault. */
interface Fault {
  rows: readonly DumpRow[];
  severity: Severity;
  /** The number of rows that must be named; all rows by default. */
  count?: number;
}

/** Returns the rows with one of them changed. */
const one = (at: number, change: (row: DumpRow) => Partial<DumpRow>, rows = REAL): DumpRow[] =>
  rows.map((row, i) => (i === at ? { ...row, ...change(row) } : row));

const LONG = REAL.findIndex(({ logprobs }) => logprobs!.length > 60);
const replaced = (values: readonly number[], at: number, x: number) =>
  values.map((y, t) => (t === at ? x : y));
/** Moves the values of a column to the next token. */
const moved = (values: readonly number[]) => [-1.3, ...values.slice(0, -1)];

const noise = () => {
  const { normal } = generator(5);
  return normal;
};
const length = ({ logprobs }: DumpRow) => logprobs!.length;

/** At least one fault for each check: the smallest change to healthy rows that causes it. */
const FAULTS: Record<string, readonly Fault[]> = {
  'non-finite': [
    {
      rows: one(3, (row) => ({ advantages: replaced(row.advantages!, 0, Number.NaN) })),
      severity: 'error',
      count: 1,
    },
    { rows: one(3, () => ({ reward: Number.POSITIVE_INFINITY })), severity: 'error', count: 1 },
  ],
  'positive-logprob': [
    { rows: changed(REAL, 'old_logprobs', (values) => values.map((x) => -x)), severity: 'error' },
    { rows: changed(REAL, 'rollout_logprobs', (values) => values.map(Math.exp)), severity: 'error' },
  ],
  'zero-logprob': [
    { rows: changed(REAL, 'ref_logprobs', (values) => values.map(() => 0)), severity: 'error' },
    {
      rows: one(LONG, (row) => ({ logprobs: row.logprobs!.map((x, t) => (t < 40 ? 0 : x)) })),
      severity: 'warning',
      count: 1,
    },
  ],
  'mask-empty': [
    { rows: unmasked((i) => i === 9), severity: 'info', count: 1 },
    { rows: unmasked((i) => i < 40), severity: 'warning', count: 40 },
  ],
  'mask-full': [
    { rows: padded(false), severity: 'warning' },
    { rows: REAL.filter((row) => length(row) >= 20).map((row) => cut(row, 20)), severity: 'info' },
  ],
  'mask-holes': [
    {
      rows: one(LONG, (row) => ({ action_mask: row.logprobs!.map((_, t) => Number(t < 5 || t > 9)) })),
      severity: 'info',
      count: 1,
    },
  ],
  'length-truncated': [
    {
      rows: REAL.map((row) => cut(row, 40)),
      severity: 'warning',
      count: REAL.filter((row) => length(row) >= 40).length,
    },
    { rows: REAL, severity: 'info', count: REAL.filter((row) => length(row) === 96).length },
  ],
  'length-extremes': [
    {
      rows: one(0, (row) => ({ ...stretched(row, 300) })),
      severity: 'info',
      // The real rollouts have eight rows of one token.
      count: 1 + REAL.filter((row) => length(row) === 1).length,
    },
  ],
  duplicates: [
    { rows: [...REAL, { ...REAL[LONG]!, task_id: 77 }], severity: 'warning', count: 2 },
    { rows: [...REAL, REAL[LONG]!], severity: 'warning', count: 2 },
    { rows: [...REAL, { ...REAL[LONG]!, run_id: 77 }], severity: 'info', count: 2 },
  ],
  'rollout-shift': [
    { rows: changed(REAL, 'rollout_logprobs', moved), severity: 'error' },
    {
      rows: one(LONG, (row) => ({ rollout_logprobs: moved(row.rollout_logprobs!) })),
      severity: 'error',
      count: 1,
    },
  ],
  'old-shift': [{ rows: changed(REAL, 'logprobs', moved), severity: 'error' }],
  'ref-shift': [{ rows: changed(DRAWN, 'ref_logprobs', moved), severity: 'error' }],
  'rollout-difference': [
    { rows: noisyEngine(0.2), severity: 'warning' },
    { rows: noisyEngine(0.9), severity: 'error' },
  ],
  'rollout-offset': [
    { rows: drawnRows({ topP: 0.9 }), severity: 'warning' },
    { rows: changed(REAL, 'rollout_logprobs', (values) => values.map((x) => x - 0.05)), severity: 'warning' },
  ],
  'rollout-scale': [
    { rows: drawnRows({ temperature: 0.7 }), severity: 'warning' },
    { rows: drawnRows({ temperature: 1.3 }), severity: 'warning' },
    { rows: drawnRows({ temperature: 0.95 }), severity: 'warning' },
    { rows: drawnRows({ temperature: 0.9 }).map(({ old_logprobs: _, ...row }) => row), severity: 'warning' },
  ],
  'rollout-drift': [{ rows: driftingEngine(0.3), severity: 'warning' }],
  'rollout-outlier': [
    {
      rows: one(LONG, (row) => ({ rollout_logprobs: replaced(row.rollout_logprobs!, 30, -14) })),
      severity: 'warning',
      count: 1,
    },
    // One token in 110,000, as happens in long runs.
    {
      rows: one(
        LONG,
        (row) => ({ rollout_logprobs: replaced(row.rollout_logprobs!, 30, -14) }),
        Array.from({ length: 12 }, () => REAL).flat(),
      ),
      severity: 'info',
      count: 1,
    },
  ],
  'old-is-rollout': [
    { rows: REAL.map((row) => ({ ...row, old_logprobs: row.rollout_logprobs! })), severity: 'info' },
  ],
  'ratio-sample-size': [{ rows: policyMoved(1.2), severity: 'warning' }],
  'ratio-clip': [
    { rows: policyMoved(0.5), severity: 'warning' },
    { rows: policyMoved(0.5).map(({ advantages: _, ...row }) => row), severity: 'warning' },
  ],
  'ratio-outlier': [
    {
      rows: one(LONG, (row) => ({ logprobs: replaced(row.logprobs!, 12, -15) })),
      severity: 'warning',
      count: 1,
    },
  ],
  'same-policy': [{ rows: REAL.map((row) => ({ ...row, logprobs: row.old_logprobs! })), severity: 'info' }],
  'kl-disagreement': [
    { rows: changed(REAL, 'ref_logprobs', (values) => values.map((x) => x + 0.5)), severity: 'warning' },
    { rows: changed(REAL, 'ref_logprobs', (values) => values.map((x) => x - 0.5)), severity: 'warning' },
  ],
  'kl-dominated': [
    {
      rows: one(LONG, (row) => ({
        old_logprobs: replaced(row.old_logprobs!, 7, -9),
        ref_logprobs: replaced(row.ref_logprobs!, 7, -0.1),
      })),
      severity: 'warning',
      count: 1,
    },
  ],
  'reference-is-policy': [
    { rows: REAL.map((row) => ({ ...row, ref_logprobs: row.old_logprobs! })), severity: 'info' },
    { rows: REAL.map((row) => ({ ...row, ref_logprobs: row.old_logprobs!, step: 20 })), severity: 'warning' },
  ],
  'advantages-constant': [
    { rows: changed(REAL, 'advantages', (values) => values.map(() => 0)), severity: 'error' },
    { rows: changed(REAL, 'advantages', (values) => values.map(() => 0.1)), severity: 'warning' },
  ],
  'advantages-not-centred': [
    {
      rows: changed(REAL, 'advantages', (values, row) => values.map(() => row.reward!)),
      severity: 'warning',
    },
    { rows: changed(REAL, 'advantages', (values) => values.map((x) => x + 1)), severity: 'warning' },
  ],
  'advantages-against-reward': [
    { rows: changed(REAL, 'advantages', (values) => values.map((x) => -x)), severity: 'error' },
  ],
  'group-without-spread': [
    { rows: withRewards((row) => (row.task_id === 4 ? 1 : row.reward!)), severity: 'info', count: 8 },
    { rows: withRewards((row) => (row.task_id! % 4 > 0 ? 1 : row.reward!)), severity: 'warning', count: 192 },
    { rows: withRewards((row) => row.task_id!), severity: 'error' },
  ],
  'group-sizes': [
    { rows: REAL.slice(3), severity: 'info', count: 5 },
    { rows: REAL.slice(7), severity: 'warning', count: 1 },
  ],
  'rewards-constant': [{ rows: withRewards(() => 0), severity: 'warning' }],
  'entropy-collapse': [
    { rows: changed(REAL, 'entropy', (values) => values.map((x) => x / 100)), severity: 'warning' },
  ],
  'entropy-negative': [
    { rows: changed(REAL, 'entropy', (values) => values.map((x) => -x)), severity: 'error' },
  ],
  'entropy-too-high': [
    { rows: one(LONG, (row) => ({ entropy: replaced(row.entropy!, 3, 140) })), severity: 'error', count: 1 },
  ],
  'entropy-mismatch': [
    // Bits instead of nats.
    { rows: changed(REAL, 'entropy', (values) => values.map((x) => x / Math.LN2)), severity: 'warning' },
    { rows: drawnRows({ temperature: 0.5 }), severity: 'warning' },
  ],
};

/** Returns the rows with the masks of some of them cleared. */
function unmasked(isCleared: (index: number) => boolean): DumpRow[] {
  return REAL.map((row, i) => ({ ...row, action_mask: row.logprobs!.map(() => Number(!isCleared(i))) }));
}

/** Returns the first tokens of a row. */
function cut(row: DumpRow, tokens: number): DumpRow {
  const columns = Object.entries(row).map(([name, x]) => [name, Array.isArray(x) ? x.slice(0, tokens) : x]);
  return Object.fromEntries(columns);
}

/** Returns a row that is repeated until it has this many tokens. */
function stretched(row: DumpRow, tokens: number): DumpRow {
  const columns = Object.entries(row).map(([name, x]) => [
    name,
    Array.isArray(x) ? Array.from({ length: tokens }, (_, t) => x[t % x.length]! - t * 1e-4) : x,
  ]);
  return Object.fromEntries(columns);
}

/** Returns the rows, padded to 96 tokens, with or without the mask that covers the padding. */
function padded(masked: boolean): DumpRow[] {
  return REAL.map((row) => {
    const columns = Object.entries(row).map(([name, x]) => [
      name,
      Array.isArray(x) ? [...x, ...new Array<number>(96 - x.length).fill(-0.5)] : x,
    ]);
    const mask = Array.from({ length: 96 }, (_, t) => Number(t < length(row)));
    return { ...Object.fromEntries(columns), ...(masked && { action_mask: mask }) };
  });
}

/** Returns the rows with a rollout engine that differs by this much noise. */
function noisyEngine(deviation: number): DumpRow[] {
  const normal = noise();
  return changed(REAL, 'rollout_logprobs', (_, row) =>
    row.old_logprobs!.map((x) => Math.min(x + deviation * normal(), 0)),
  );
}

/** Returns the rows with a rollout engine whose noise grows from 0 to this deviation. */
function driftingEngine(deviation: number): DumpRow[] {
  const normal = noise();
  return changed(REAL, 'rollout_logprobs', (values, row) =>
    row.old_logprobs!.map((x, t) => x + ((deviation * t) / values.length) * normal()),
  );
}

/** Returns the rows with a current policy that has moved by noise of this deviation. */
function policyMoved(deviation: number): DumpRow[] {
  const normal = noise();
  return changed(REAL, 'logprobs', (_, row) => row.old_logprobs!.map((x) => x + deviation * normal()));
}

function withRewards(reward: (row: DumpRow) => number): DumpRow[] {
  return withAdvantages(REAL.map((row) => ({ ...row, reward: reward(row) })));
}

/** Healthy dumps, by what is special about them. */
const HEALTHY: Record<string, readonly DumpRow[]> = {
  'real rollouts': REAL,
  'rollouts drawn from known distributions': DRAWN,
  'padded rollouts with a mask': padded(true),
  'rollouts before the first update': REAL.map((row) => ({ ...row, logprobs: row.old_logprobs! })),
  'rollouts without current log-probabilities': REAL.map(({ logprobs: _, ...row }) => row),
  'an engine that differs by 0.05 nats, as mixtures of experts do': noisyEngine(0.05),
  'log-probabilities that are all rounded to bfloat16': [
    'logprobs',
    'old_logprobs',
    'ref_logprobs',
    'entropy',
  ].reduce((rows, column) => changed(rows, column as 'logprobs', (values) => values.map(bfloat16)), REAL),
  'an engine whose noise has heavy tails': drawnRows({ heavyTails: true }),
  'a policy of low entropy, and an engine whose noise has heavy tails': drawnRows({
    sharpness: 5,
    heavyTails: true,
  }),
  'a single group': REAL.slice(0, 8),
  'a single row': REAL.slice(0, 1),
  'multi-turn rollouts': REAL.map((row) => ({
    ...row,
    action_mask: row.logprobs!.map((_, t) => Number(t % 20 < 15)),
  })),
};

describe('the checks of the doctor', () => {
  const healthy = new Map<string, Diagnosis>();
  before(async () => {
    for (const [kind, rows] of Object.entries(HEALTHY)) healthy.set(kind, await diagnosed(rows));
  });

  it('each has a fault that this file makes', () => {
    assert.deepEqual(Object.keys(FAULTS).sort(), CHECKS.map(({ name }) => name).sort());
  });

  for (const { name, title } of CHECKS)
    describe(`${name}: ${title}`, () => {
      for (const [i, { rows, severity, count = rows.length }] of FAULTS[name]!.entries())
        it(`is found in a dump that has the fault (${i + 1}, ${severity})`, async () => {
          const { findings, checks } = await diagnosed(rows);
          const finding = findings.find(({ id }) => id === name);
          assert.ok(finding, `not among ${findings.map(({ id }) => id).join(', ') || 'no findings'}`);
          assert.equal(finding.severity, severity);
          assert.equal(finding.title, title);
          assert.deepEqual(finding.evidence, checks.find((check) => check.name === name)!.evidence);
          assertRows(finding, rows.length, count);
        });

      it('is not found in healthy dumps', () => {
        for (const [kind, { findings }] of healthy) {
          const finding = findings.find(({ id }) => id === name);
          if (finding) assert.equal(finding.severity, 'info', `${kind}: ${JSON.stringify(finding.evidence)}`);
        }
      });
    });

  it('find faults of single rows without blaming others', async () => {
    const { findings } = await diagnosed(
      one(5, (row) => ({ ref_logprobs: replaced(row.ref_logprobs!, 2, Number.NaN) })),
    );
    const { rows } = findings.find(({ id }) => id === 'non-finite')!;
    assert.deepEqual(rows, {
      count: 1,
      first: [{ file: 'dump.jsonl', line: 6 }],
      files: [{ file: 'dump.jsonl', rows: 1 }],
    });
  });

  it('ignore values under the mask', async () => {
    const rows = REAL.map((row) => ({
      ...row,
      action_mask: row.logprobs!.map((_, t) => Number(t > 0)),
      logprobs: replaced(row.logprobs!, 0, Number.NaN),
      old_logprobs: replaced(row.old_logprobs!, 0, 30),
      entropy: replaced(row.entropy!, 0, -9),
    })).filter((row) => length(row) > 1);
    const { findings, tokens } = await diagnosed(rows);
    assert.deepEqual(
      findings.filter(({ severity }) => severity !== 'info'),
      [],
    );
    assert.equal(
      tokens,
      rows.reduce((sum, row) => sum + length(row) - 1, 0),
    );
  });

  it('survive dumps in which no number is finite', async () => {
    for (const x of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      const rows = REAL.slice(0, 20).map((row) => {
        const columns = Object.entries(row).map(([name, y]) => [name, Array.isArray(y) ? y.map(() => x) : y]);
        return { ...Object.fromEntries(columns), reward: x };
      });
      const { findings } = await diagnosed(rows);
      assert.equal(findings[0]!.id, 'non-finite');
      for (const { evidence } of findings)
        for (const number of Object.values(evidence)) assert.ok(Number.isFinite(number));
    }
  });
});

function assertRows({ rows }: Finding, all: number, count: number): void {
  // A fault of all rows together, or of most of them: very short rows cannot show some faults.
  if (count === all) assert.ok(rows.count > 0.5 * all, `${rows.count} of ${all} rows`);
  else assert.equal(rows.count, count);
  assert.ok(rows.first.length <= 5);
  const inFiles = rows.files.reduce((sum, file) => sum + file.rows, 0);
  assert.ok(inFiles === rows.count || (inFiles === 0 && rows.count === all));
}
