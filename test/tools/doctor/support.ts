/** Dumps for the doctor's tests: real rollouts, dumps that are drawn from known distributions, and parts of both. */
import { readFileSync } from 'node:fs';
import { type Diagnosis, diagnose } from '../../../lib/tools/doctor/index.js';
import { COLUMNS } from '../../../lib/tools/rollouts/columns.js';
import type { RolloutColumn, RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { generator } from '../../support/random.js';

const EXAMPLE = new URL('../../../examples/rollouts.jsonl', import.meta.url);

/** A row of a dump, by the columns of the files. Columns that all rows lack are absent from the dump. */
export interface DumpRow {
  logprobs?: number[];
  old_logprobs?: number[];
  rollout_logprobs?: number[];
  ref_logprobs?: number[];
  entropy?: number[];
  advantages?: number[];
  action_mask?: number[];
  reward?: number;
  task_id?: number;
  run_id?: number;
  step?: number;
  /** The file that has the row. */
  file?: string;
}

/** The columns of a row that have one number per token. */
export const TOKEN_COLUMNS = [
  'logprobs',
  'old_logprobs',
  'rollout_logprobs',
  'ref_logprobs',
  'entropy',
  'advantages',
] as const;

/** Rounds a number to bfloat16, as an engine's log-probabilities are. */
export function bfloat16(x: number): number {
  const bits = new Uint32Array(Float32Array.of(x).buffer);
  bits[0] = (bits[0]! + 0x7fff + ((bits[0]! >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(bits.buffer)[0]!;
}

/**
 * Returns the real rollouts with what they lack: the log-probabilities of a rollout engine, which differ by noise of
 * 0.02 nats and by the rounding to bfloat16, and the advantages of GRPO.
 */
export function realRows(): DumpRow[] {
  const { normal } = generator(1);
  const rows: Required<DumpRow>[] = readFileSync(EXAMPLE, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  return withAdvantages(
    rows.map(({ task_id, run_id, reward, logprobs, old_logprobs, ref_logprobs, entropy }) => ({
      task_id,
      run_id,
      reward,
      logprobs,
      old_logprobs,
      ref_logprobs,
      entropy,
      rollout_logprobs: old_logprobs.map((x) => Math.min(bfloat16(x + 0.02 * normal()), 0)),
    })),
  );
}

/** Returns the rows with advantages: the rewards, centred and scaled in each group. */
export function withAdvantages(rows: readonly DumpRow[]): DumpRow[] {
  return rows.map((row) => {
    const rewards = rows.filter(({ task_id }) => task_id === row.task_id).map(({ reward }) => reward!);
    const mean = rewards.reduce((sum, x) => sum + x, 0) / rewards.length;
    const deviation = Math.sqrt(rewards.reduce((sum, x) => sum + (x - mean) ** 2, 0) / rewards.length);
    const advantage = (row.reward! - mean) / (deviation + 1e-6);
    return { ...row, advantages: row.logprobs!.map(() => advantage) };
  });
}

/** How the rollout engine samples in {@link drawnRows}. */
export interface Sampling {
  temperature?: number;
  /** The engine keeps the most likely tokens whose probabilities add up to this, and renormalises them. */
  topP?: number;
  /** Multiplies the logits; 1 by default. At 5, the entropy is low, and most tokens are almost certain. */
  sharpness?: number;
  /** Draws the noise of the engine from Student's t distribution with 3 degrees of freedom, which has heavy tails. */
  heavyTails?: boolean;
  seed?: number;
}

const WORDS = 64;

/**
 * Draws rollouts from random distributions over a vocabulary of 64 words. The engine samples with a temperature and
 * top-p; its log-probabilities are those of the distribution that it sampled from, with the noise of bfloat16. The
 * trainer uses neither. Its policy has moved a little, and the reference is another policy nearby.
 */
export function drawnRows(sampling: Sampling = {}): DumpRow[] {
  const { temperature = 1, topP = 1, sharpness = 1, heavyTails = false, seed = 7 } = sampling;
  const { uniform, normal, integer } = generator(seed);
  const noise = () =>
    0.02 * normal() * (heavyTails ? Math.sqrt(3 / (normal() ** 2 + normal() ** 2 + normal() ** 2)) : 1);
  const logSoftmax = (logits: readonly number[]) => {
    const most = Math.max(...logits);
    const norm = most + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - most), 0));
    return logits.map((x) => x - norm);
  };
  const sampled = (logits: readonly number[]) => {
    const logs = logSoftmax(logits.map((x) => x / temperature));
    const order = [...logs.keys()].sort((i, j) => logs[j]! - logs[i]!);
    const kept: number[] = [];
    let mass = 0;
    for (const word of order) {
      if (mass >= topP) break;
      kept.push(word);
      mass += Math.exp(logs[word]!);
    }
    let u = uniform() * mass;
    const word = kept.find((word) => {
      u -= Math.exp(logs[word]!);
      return u <= 0;
    });
    const chosen = word ?? kept.at(-1)!;
    return { word: chosen, logprob: logs[chosen]! - Math.log(mass) };
  };
  const rows: DumpRow[] = [];
  for (let task = 0; task < 12; task++)
    for (let run = 0; run < 6; run++) {
      const row = { task_id: task, run_id: run, reward: integer(0, 9) / 3 };
      const columns = Object.fromEntries(TOKEN_COLUMNS.map((name) => [name, [] as number[]]));
      for (let t = integer(12, 60); t > 0; t--) {
        const spread = sharpness * (1 + 3 * uniform());
        const logits = Array.from({ length: WORDS }, () => spread * normal());
        const { word, logprob } = sampled(logits);
        const old = logSoftmax(logits);
        const current = logSoftmax(logits.map((x) => x + 0.05 * normal()));
        columns.old_logprobs!.push(old[word]!);
        columns.logprobs!.push(current[word]!);
        columns.ref_logprobs!.push(logSoftmax(logits.map((x) => x + 0.2 * normal()))[word]!);
        columns.rollout_logprobs!.push(Math.min(bfloat16(logprob + noise()), 0));
        columns.entropy!.push(-current.reduce((sum, x) => sum + Math.exp(x) * x, 0));
      }
      rows.push({ ...row, ...columns });
    }
  return withAdvantages(rows);
}

/** Returns the rows as parts of at most this many tokens. A row with more tokens is a part of its own. */
export function partsOf(rows: readonly DumpRow[], maxTokens = Number.POSITIVE_INFINITY): RolloutPart[] {
  const parts: RolloutPart[] = [];
  let open: DumpRow[] = [];
  let tokens = 0;
  let first = 0;
  const close = () => {
    parts.push(partOf(open, first));
    first += open.length;
    open = [];
    tokens = 0;
  };
  for (const row of rows) {
    const length = lengthOf(row);
    if (open.length > 0 && tokens + length > maxTokens) close();
    open.push(row);
    tokens += length;
  }
  close();
  return parts;
}

function lengthOf(row: DumpRow): number {
  return (row.action_mask ?? TOKEN_COLUMNS.map((name) => row[name]).find((list) => list) ?? []).length;
}

function partOf(rows: readonly DumpRow[], first: number): RolloutPart {
  const offsets = [0];
  for (const row of rows) offsets.push(offsets.at(-1)! + lengthOf(row));
  const actionMask = Uint8Array.from(
    rows.flatMap((row) => row.action_mask ?? new Array<number>(lengthOf(row)).fill(1)),
  );
  const columns: Record<string, unknown> = {};
  const has = (name: RolloutColumn & keyof DumpRow) => rows.length > 0 && rows[0]![name] !== undefined;
  for (const name of TOKEN_COLUMNS)
    if (has(name)) columns[COLUMNS[name].key] = Float32Array.from(rows.flatMap((row) => row[name]!));
  for (const name of ['reward', 'step'] as const)
    if (has(name)) columns[COLUMNS[name].key] = Float64Array.from(rows, (row) => row[name]!);
  for (const name of ['task_id', 'run_id'] as const)
    if (has(name)) columns[COLUMNS[name].key] = Int32Array.from(rows, (row) => row[name]!);
  return {
    batch: { cuSeqlens: Int32Array.from(offsets), actionMask, ...columns } as RolloutPart['batch'],
    rows: rows.length,
    tokens: actionMask.reduce((sum, m) => sum + m, 0),
    first,
    kept: rows.map(() => ({})),
    places: rows.map(({ file = 'dump.jsonl' }, i) => ({ file, line: first + i + 1 })),
    // The numbers of the ids are their indices.
    idsOf: (name) =>
      Array.from(
        { length: 1 + Math.max(-1, ...rows.map((row) => row[name as 'task_id' | 'run_id'] ?? -1)) },
        (_, id) => `id ${id}`,
      ),
  };
}

/** Diagnoses rows. */
export function diagnosed(rows: readonly DumpRow[], maxTokens?: number): Promise<Diagnosis> {
  return diagnose(partsOf(rows, maxTokens));
}

/** Returns the rows with one column changed in each of them. */
export function changed<K extends (typeof TOKEN_COLUMNS)[number]>(
  rows: readonly DumpRow[],
  column: K,
  change: (values: number[], row: DumpRow, index: number) => number[],
): DumpRow[] {
  return rows.map((row, i) => ({ ...row, [column]: change(row[column]!, row, i) }));
}
