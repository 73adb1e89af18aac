// Runs the phases of a plan, and merges the parts that they write.
import { mkdir, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { LossError } from '../../index.js';
import { checkRange, writeGradients } from '../rollouts/index.js';
import { describeFailure } from '../rollouts/source.js';
import { writing } from '../rollouts/write/staging.js';
import { type FilesEvaluation, mergeResults } from './evaluate-files.js';
import type { EvaluationSettings, ShardResult } from './evaluation.js';
import { mergeCounts } from './merge-counts.js';
import type { PartResult, PartWatcher } from './part-computer.js';
import {
  DamagedPart,
  numberOf,
  type OnCollected,
  PART_ENDING,
  partName,
  readCounts,
  readHeader,
  readResult,
  readWholeCounts,
  type WholeCounts,
  writeCounts,
  writeResult,
  writeWholeCounts,
} from './part-file.js';
import type { Phase, Plan } from './plan.js';
import { type Collector, computeShard, countShard, evaluateShard, type Sources } from './shard.js';
import type { Subject } from './subject.js';
import { Whole } from './whole.js';

/** The result of running a phase for a shard. */
export interface ShardRun {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  /** The files that it has written. */
  files: string[];
}

/** Runs the phases of a plan for one shard or several. The parts are files of one folder. */
export class PlanRun {
  readonly #plan: Plan;
  readonly #folder: string;
  readonly #subjects: readonly Subject[];
  readonly #settings: EvaluationSettings;
  readonly #collect: (() => Collector) | undefined;
  readonly #files: ReadonlyMap<string, Plan['files'][number]>;
  #whole: (Pick<WholeCounts, 'shards'> & { whole: Whole }) | undefined;

  /** @param collect makes what collects more about the rows of each shard. */
  constructor(
    plan: Plan,
    folder: string,
    subjects: readonly Subject[],
    settings: EvaluationSettings,
    collect?: () => Collector,
  ) {
    this.#plan = plan;
    this.#collect = collect;
    this.#folder = folder;
    this.#subjects = subjects;
    const { compares, present } = plan.configuration;
    this.#settings = {
      ...settings,
      read: { ...settings.read, ...(present && { present }) },
      ...(compares && { compares }),
    };
    this.#files = new Map(plan.files.map((about) => [about.file, about]));
  }

  /**
   * Runs a phase for a shard.
   * @throws LossError about the files or the functions, if a file has changed since the plan was made, and in the phase
   * 'compute' if a shard was not counted.
   */
  async run(phase: Phase, shard: number): Promise<ShardRun> {
    const { sources, checkAgain } = await this.#sourcesOf(shard);
    if (phase === 'count') {
      const counts = await countShard(sources, this.#subjects, this.#settings);
      await checkAgain();
      const file = await writeCounts(this.#folder, this.#plan, shard, counts);
      return { rows: counts.rows, tokens: counts.tokens, files: [file] };
    }
    const collector = this.#collect?.();
    const { gradients } = this.#plan.configuration;
    if (!gradients) {
      const result = await this.#resultOf(sources, shard, collector?.watch);
      await checkAgain();
      return this.#write(shard, result, [], collector);
    }
    const file = gradientsFile(this.#folder, STEM, shard, gradients.ending);
    const { ids, padded, dtype } = gradients;
    await writing(file, () => mkdir(this.#folder, { recursive: true }));
    const writer = writeGradients(file, { ids, layout: padded ? 'padded' : 'packed', dtype });
    try {
      const result = await this.#resultOf(sources, shard, async (part, results) => {
        const [{ grad, gradEntropy, offsets }] = results as [PartResult];
        await writer.add({ ...part, batch: { cuSeqlens: offsets } }, grad, gradEntropy);
        await collector?.watch(part, results);
      });
      await checkAgain();
      if (result.rows === 0) return this.#write(shard, result, [], collector);
      await writer.close();
      return this.#write(shard, result, [file], collector);
    } finally {
      await writer.abort();
    }
  }

  /**
   * Merges the counts of all shards, which the phase 'compute' otherwise does when it begins.
   * @returns the number of rows and of unmasked tokens in all shards.
   * @throws LossError if a shard was not counted, or if the rows of the shards do not belong together.
   */
  async mergeCounts(): Promise<Pick<ShardRun, 'rows' | 'tokens'>> {
    const { rows, tokens } = (await this.#counted()).whole;
    return { rows, tokens };
  }

  async #write(
    shard: number,
    result: ShardResult,
    written: string[],
    collector: Collector | undefined,
  ): Promise<ShardRun> {
    const file = await writeResult(this.#folder, this.#plan, shard, result, collector?.collected());
    return { rows: result.rows, tokens: result.tokens, files: [file, ...written] };
  }

  async #resultOf(sources: Sources, shard: number, watch?: PartWatcher): Promise<ShardResult> {
    if (this.#plan.shards.length === 1) return evaluateShard(sources, this.#subjects, this.#settings, watch);
    const { whole, shards } = await this.#counted();
    return computeShard(sources, this.#subjects, this.#settings, whole, shards[shard]!, watch);
  }

  /** Returns the ranges of a shard, which must not have changed. */
  async #sourcesOf(shard: number): Promise<{ sources: Sources; checkAgain: () => Promise<void> }> {
    const ranges = this.#plan.shards[shard]!;
    const checks: (() => Promise<void>)[] = [];
    for (const range of ranges) {
      const { size, etag } = this.#files.get(range.file)!;
      checks.push(await checkRange(range, size, etag));
    }
    return {
      sources: ranges.map((range) => (range.whole ? range.file : range)),
      async checkAgain() {
        for (const check of checks) await check();
      },
    };
  }

  /** Returns what is needed of all rows. The first worker that needs it merges the counts of all shards. */
  async #counted() {
    this.#whole ??= await this.#readCounted();
    return this.#whole;
  }

  async #readCounted() {
    let counted = await this.#readWhole();
    if (!counted) {
      const files = await findParts(this.#plan, 'count', [this.#folder]);
      const counts = [];
      for (const each of files) counts.push(await readCounts(each, this.#plan));
      counted = mergeCounts(counts, this.#plan.configuration.maxRows);
      // Several workers may do the same at the same time. They write the same file.
      await writeWholeCounts(this.#folder, this.#plan, counted);
    }
    const { counts, shards } = counted;
    return { whole: await Whole.of(this.#subjects, counts, undefined, this.#settings.batchTokens), shards };
  }

  /** Returns the merged counts of all shards; undefined if their file is missing or damaged. */
  async #readWhole(): Promise<WholeCounts | undefined> {
    const file = join(this.#folder, WHOLE_NAME);
    if (!(await exists(file))) return undefined;
    try {
      return await readWholeCounts(file, this.#plan);
    } catch (error) {
      if (error instanceof DamagedPart) return undefined;
      throw error;
    }
  }
}

// The file of the merged counts. If it is damaged, the parts that it was merged from replace it.
const WHOLE_NAME = partName({ phase: 'whole' });

/** Returns the name of the file of gradients of a shard. */
function gradientsFile(folder: string, stem: string, shard: number, ending: string): string {
  return join(folder, `${stem}-${numberOf(shard)}.${ending}`);
}

const STEM = 'gradients';

/**
 * Returns the names of the files of gradients that a plan's shards have; none if the plan has no gradients.
 * @param stem how the names begin.
 */
export function gradientsFiles(
  { configuration: { gradients }, shards }: Plan,
  folder: string,
  stem = STEM,
): string[] {
  return gradients ? shards.map((_, shard) => gradientsFile(folder, stem, shard, gradients.ending)) : [];
}

/**
 * Merges the results of all shards.
 * @param places the part files, or folders that have them.
 * @param onCollected gets what was collected about the rows of each shard, in the order of the shards.
 * @throws LossError `ERR_INVALID_INPUT` if a part is missing, is there twice, or belongs to another plan.
 */
export async function mergePlan<S extends Subject>(
  plan: Plan,
  subjects: readonly S[],
  places: readonly string[],
  onCollected?: OnCollected,
): Promise<FilesEvaluation<S>> {
  const files = await findParts(plan, 'compute', places);
  const results: ShardResult[] = [];
  for (const file of files) results.push(await readResult(file, plan, onCollected));
  if (results.every(({ rows }) => rows === 0))
    throw new LossError('ERR_INVALID_INPUT', { expected: 'at least one good row', received: 'none' });
  return mergeResults(subjects, results);
}

/**
 * Returns the part file of each shard.
 * @param places part files, or folders that have them.
 */
async function findParts(plan: Plan, phase: Phase, places: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const place of places)
    for (const file of await partsIn(place)) {
      const header = await readHeader(file, plan).catch((error: unknown) => {
        if (error instanceof DamagedPart && basename(file) === WHOLE_NAME) return undefined;
        throw error;
      });
      if (header?.phase !== phase) continue;
      const other = found[header.shard!];
      if (other !== undefined)
        throw new LossError('ERR_INVALID_INPUT', {
          at: file,
          expected: `one part of shard ${header.shard} in the phase '${phase}'`,
          received: `a second one after ${other}`,
        });
      found[header.shard!] = file;
    }
  const missing = plan.shards.flatMap((_, shard) => (found[shard] === undefined ? [shard] : []));
  if (missing.length > 0) {
    const shown = missing.slice(0, SHOWN).join(', ') + (missing.length > SHOWN ? ', …' : '');
    throw new LossError('ERR_INVALID_INPUT', {
      at: places.join(', '),
      expected: `the parts of all ${plan.shards.length} shards in the phase '${phase}'`,
      received: `none of shard${missing.length > 1 ? 's' : ''} ${shown}`,
      hint: (spell) =>
        `Run ${missing.length > 1 ? 'them' : 'it'} with ${spell('phase')} ${phase}; the first would write ` +
        partName({ phase, shard: missing[0]! }),
    });
  }
  return found;
}

const SHOWN = 10;

async function partsIn(place: string): Promise<string[]> {
  try {
    if (!(await stat(place)).isDirectory()) return [place];
    const names = await readdir(place);
    return names
      .filter((name) => name.endsWith(PART_ENDING) && !name.startsWith('.'))
      .sort()
      .map((name) => join(place, name));
  } catch (error) {
    const details = { at: place, expected: 'a part, or a folder of parts', received: describeFailure(error) };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}

async function exists(file: string): Promise<boolean> {
  return stat(file).then(
    () => true,
    () => false,
  );
}
