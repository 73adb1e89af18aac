/**
 * Tests that parts that are missing, doubled, foreign, damaged or hostile are errors that name them, that changed input is
 * an error, and that plans which somebody has changed are errors.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { ALGORITHM_TYPE, LossError } from '../../../lib/index.js';
import {
  lossSubject,
  mergePlan,
  objectiveSubject,
  type Plan,
  PlanRun,
  readPlan,
  type Subject,
  writePlan,
} from '../../../lib/tools/parts/index.js';
import { generator } from '../../support/random.js';
import { drawRows } from '../../support/rollout-rows.js';
import { Files } from '../cli/support.js';
import { planOf, runAll, settingsOf, VERSION } from './support.js';

type Json = Record<string, unknown>;

describe('parts of a plan', () => {
  const files = new Files();
  const subjects: Subject[] = [
    objectiveSubject(
      ALGORITHM_TYPE.get('rloo').objective({
        advantage_fn: 'remax',
        kl_penalty_fn: 'k1',
        kl_penalty_fn_args: { kl_coef: 0.3 },
      }),
    ),
    objectiveSubject(ALGORITHM_TYPE.get('grpo').objective({ policy_loss_fn: 'mix' })),
    objectiveSubject(ALGORITHM_TYPE.get('ppo').objective({})),
  ];
  const planning = { shardSize: 8000, compares: true };
  let input: string;
  let plan: Plan;
  let complete: string;
  let folder: string;
  before(async () => {
    input = files.write('rows.jsonl', drawRows(1, 40));
    plan = await planOf(files.directory, [input], subjects, planning);
    assert.ok(plan.shards.length >= 4);
    complete = await runAll(files.directory, plan, subjects, planning);
  });
  beforeEach(() => {
    folder = mkdtempSync(files.path('copy-'));
    for (const name of readdirSync(complete)) copyFileSync(join(complete, name), join(folder, name));
  });
  after(() => files.remove());

  const merge = (...places: string[]) => mergePlan(plan, subjects, places.length > 0 ? places : [folder]);
  const compute = (shard = 0) => new PlanRun(plan, folder, subjects, settingsOf({})).run('compute', shard);
  const fails = (promise: Promise<unknown>, ...says: RegExp[]) =>
    assert.rejects(promise, (error) => {
      assert.ok(error instanceof LossError, String(error));
      for (const pattern of says) assert.match(error.message, pattern);
      return true;
    });

  it('can be merged from several folders and files', async () => {
    const whole = await merge();
    const other = mkdtempSync(files.path('other-'));
    renameSync(join(folder, 'compute-00002.part'), join(other, 'compute-00002.part'));
    assert.deepEqual(await merge(other, folder), whole);
    assert.deepEqual(await merge(folder, join(other, 'compute-00002.part')), whole);
  });

  it('are merged although a worker that was killed has left a temporary folder', async () => {
    const left = join(folder, '.compute-00001.part-Ab3dEf');
    mkdirSync(left);
    writeFileSync(join(left, 'complete'), 'half of a part');
    await merge();
  });

  it('are an error that names them if they are missing', async () => {
    rmSync(join(folder, 'compute-00001.part'));
    rmSync(join(folder, 'compute-00003.part'));
    await fails(merge(), /phase 'compute', got none of shards 1, 3\./, /compute-00001\.part/);
    rmSync(join(folder, 'whole.part'));
    rmSync(join(folder, 'count-00002.part'));
    await fails(compute(), /phase 'count', got none of shard 2\./, /count-00002\.part/);
    await fails(merge(files.path('nowhere')), /nowhere: expected a part, or a folder of parts/);
  });

  it('are an error that names them if they are there twice', async () => {
    copyFileSync(join(folder, 'compute-00001.part'), join(folder, 'copy of 1.part'));
    await fails(merge(), /copy of 1\.part: expected one part of shard 1 .*second one after .*compute-00001/);
    await fails(merge(folder, folder), /one part of shard 1|one part of shard 0/);
    copyFileSync(join(folder, 'count-00001.part'), join(folder, 'count-copy.part'));
    rmSync(join(folder, 'whole.part'));
    await fails(compute(), /count-copy\.part: expected one part of shard 1 in the phase 'count'/);
  });

  it('are an error that names them if they belong to another plan', async () => {
    const other = await planOf(files.directory, [input], subjects, { ...planning, shardSize: 9000 });
    const foreign = await runAll(files.directory, other, subjects, planning);
    for (const name of ['compute-00001.part', 'count-00001.part', 'whole.part']) {
      copyFileSync(join(foreign, name), join(folder, name));
      await fails(merge(), new RegExp(`${name}: expected a part of this plan, .*, got one of the plan`));
      copyFileSync(join(complete, name), join(folder, name));
    }
    copyFileSync(join(foreign, 'whole.part'), join(folder, 'whole.part'));
    await fails(compute(), /whole\.part: expected a part of this plan/);
  });

  it('are an error that names them if they are truncated or damaged', async () => {
    const file = join(folder, 'compute-00001.part');
    const bytes = readFileSync(file);
    for (const length of [0, 1, 100, 250, 300, bytes.length - 100, bytes.length - 1]) {
      writeFileSync(file, bytes.subarray(0, length));
      await fails(merge(), /compute-00001\.part/);
    }
    const { integer } = generator(5);
    for (let i = 0; i < 50; i++) {
      const damaged = Buffer.from(bytes);
      damaged[integer(0, bytes.length - 2)]! ^= 1 << integer(0, 7);
      writeFileSync(file, damaged);
      // A damaged header can name another shard, which is then there twice.
      await fails(merge(), /\.part/);
    }
    writeFileSync(file, bytes);
    await merge();
  });

  it('are merged again if the merged counts are truncated or damaged', async () => {
    const file = join(folder, 'whole.part');
    const bytes = readFileSync(file);
    const flipped = Buffer.from(bytes);
    flipped[bytes.length - 10]! ^= 1;
    for (const damaged of [bytes.subarray(0, 0), bytes.subarray(0, 100), bytes.subarray(0, -20), flipped]) {
      writeFileSync(file, damaged);
      await merge();
      await compute();
      assert.deepEqual(readFileSync(file), bytes);
    }
  });

  it('are an error if they are not parts', async () => {
    for (const text of [
      '',
      '\n',
      'null\n',
      '[]\n{}\n',
      '{}\n{}\n',
      '\u0000'.repeat(1000),
      '{"format":"policy-loss part"}\n',
    ]) {
      writeFileSync(join(folder, 'x.part'), text);
      await fails(merge(), /x\.part/);
    }
  });

  /** Changes the data of a part, and gives it a fitting digest, as somebody hostile would. */
  function forge(name: string, change: (data: Json) => unknown): void {
    const [head, body] = readFileSync(join(complete, name), 'utf8').split('\n');
    const data: Json = JSON.parse(body!);
    const forged = JSON.stringify(change(data) ?? data);
    const sha256 = createHash('sha256').update(forged).digest('hex');
    writeFileSync(join(folder, name), `${JSON.stringify({ ...JSON.parse(head!), sha256 })}\n${forged}\n`);
  }

  const HOSTILE: unknown[] = [
    undefined,
    null,
    -1,
    0.5,
    1e308,
    2 ** 53,
    'AAAA',
    '',
    'x'.repeat(1000),
    [],
    {},
    [null],
    [[]],
    true,
    { __proto__: null, length: 1e9 },
    [{ names: ['a'], values: '' }],
  ];

  /** Calls `visit` with the path of every value within a value. */
  async function everyValue(value: unknown, visit: (path: (string | number)[]) => Promise<void>) {
    const walk = async (value: unknown, path: (string | number)[]): Promise<void> => {
      if (path.length > 0) await visit(path);
      if (value === null || typeof value !== 'object') return;
      for (const key of Object.keys(value).slice(0, 12)) await walk((value as Json)[key], [...path, key]);
    };
    await walk(value, []);
  }

  function replaced(data: Json, path: (string | number)[], value: unknown): Json {
    const copy = structuredClone(data);
    let at = copy as Record<string | number, unknown>;
    for (const key of path.slice(0, -1)) at = at[key] as Record<string | number, unknown>;
    at[path.at(-1)!] = value;
    return copy;
  }

  it('give a result or an error that names a part if somebody hostile has written them', async () => {
    let [errors, results] = [0, 0];
    for (const name of ['compute-00001.part', 'count-00001.part', 'whole.part']) {
      const data: Json = JSON.parse(readFileSync(join(complete, name), 'utf8').split('\n')[1]!);
      await everyValue(data, async (path) => {
        for (const value of HOSTILE) {
          // The merged counts are read instead of the counts, if they are there.
          if (name === 'count-00001.part') rmSync(join(folder, 'whole.part'), { force: true });
          forge(name, (data) => replaced(data, path, value));
          const what = `${name}: ${path.join('.')} = ${JSON.stringify(value)?.slice(0, 40)}`;
          try {
            if (name.startsWith('compute')) await merge();
            else await compute(1);
            results++;
          } catch (error) {
            assert.ok(error instanceof LossError, `${what}: ${(error as Error).stack}`);
            errors++;
          }
        }
      });
      copyFileSync(join(complete, name), join(folder, name));
    }
    assert.ok(errors > 10 * results, `${errors} errors and ${results} results`);
  });

  it('are an error if they were computed with other counts', async () => {
    forge('compute-00001.part', (data) => {
      const [first] = data.subjects as { normalizer: { rows: number } }[];
      first!.normalizer.rows += 1;
    });
    await fails(merge(), /rloo: expected parts that were computed with the same counts of all rows/);
  });

  it('are an error if they lack the products of the gradients', async () => {
    for (const products of [undefined, []]) {
      forge('compute-00001.part', (data) => ({ ...data, products }));
      await fails(merge(), /compute-00001\.part: products: expected /);
    }
  });

  it('are an error if their spreads belong to other rows, or are not there', async () => {
    const forgeSpreads = (change: (spreads: Float64Array) => unknown) =>
      forge('whole.part', ({ counts }) => {
        const { spreads } = counts as { spreads: Record<string, string> };
        const [key] = Object.keys(spreads);
        const numbers = new Float64Array(new Uint8Array(Buffer.from(spreads[key!]!, 'base64')).buffer);
        change(numbers);
        spreads[key!] = Buffer.from(numbers.buffer).toString('base64');
      });
    forgeSpreads((numbers) => numbers[0]!++);
    await fails(compute(), /whole\.part: counts\.spreads\..*: expected a row of \d+ tokens, got \d+/);
    // Hostile means give other advantages, but no harm.
    forgeSpreads((numbers) => numbers.fill(Number.NaN, 1, 3));
    await compute();
    forge('whole.part', ({ counts }) => {
      (counts as Json).spreads = {};
    });
    await fails(
      compute(),
      /rows\.jsonl, line 1: expected rows with the same columns as when they were counted/,
    );
  });

  it('are not computed if a file has changed since the plan', async () => {
    const text = readFileSync(input);
    const { atime, mtime } = statSync(input);
    try {
      const changed = Buffer.from(text);
      const digit = changed.indexOf('9');
      changed[digit]! = '8'.charCodeAt(0);
      writeFileSync(input, changed);
      utimesSync(input, atime, mtime);
      const shard = plan.shards.findIndex(([piece]) => piece!.start <= digit && digit < piece!.end);
      for (const phase of ['count', 'compute'] as const) {
        const run = (shard: number) => new PlanRun(plan, folder, subjects, settingsOf({})).run(phase, shard);
        await fails(
          run(shard),
          /rows\.jsonl: expected bytes \d+ to \d+ as when they were planned/,
          /new plan/,
        );
        await run(shard === 0 ? 1 : 0);
      }
      writeFileSync(input, text);
      appendFileSync(input, '\n');
      await fails(compute(), /rows\.jsonl: expected \d+ bytes, as when it was planned, got \d+ bytes/);
      rmSync(input);
      await fails(compute(), /rows\.jsonl: expected a readable file/);
    } finally {
      writeFileSync(input, text);
    }
  });

  it('are not written if a file is written while it is read', async () => {
    const settings = settingsOf({});
    const progress = {
      begin: () => utimesSync(input, new Date(), new Date(1e12)),
      advance: () => {},
    };
    rmSync(join(folder, 'compute-00000.part'));
    await fails(
      new PlanRun(plan, folder, subjects, { ...settings, progress }).run('compute', 0),
      /rows\.jsonl: expected a file that nobody writes while it is read/,
    );
    assert.ok(!readdirSync(folder).includes('compute-00000.part'));
  });

  it('are complete or absent: no temporary file is left', () => {
    for (const name of readdirSync(complete)) assert.match(name, /^(whole|(count|compute)-\d{5})\.part$/);
  });

  it('of shards with other columns are an error, as within a file', async () => {
    const rows = drawRows(3, 10).map(({ entropy, ...row }, b) => (b === 8 ? { ...row, entropy } : row));
    const mixed = files.write('mixed.jsonl', rows);
    const own = [objectiveSubject(ALGORITHM_TYPE.get('grpo').objective({}))];
    const plan = await planOf(files.directory, [mixed], own, { shardSize: 1 });
    await fails(
      runAll(files.directory, plan, own, { shardSize: 1 }),
      /mixed\.jsonl, line 9: entropy: expected a list of numbers in every row or in none, got one here, but none in .*mixed\.jsonl, line 1/,
    );
  });

  it('of shards with other steps are an error', async () => {
    const rows = drawRows(4, 10).map((row, b) => ({ ...row, step: b < 7 ? 5 : 6 }));
    const steps = files.write('steps.jsonl', rows);
    const own = [lossSubject('mix_chord', {})];
    const plan = await planOf(files.directory, [steps], own, { shardSize: 1 });
    await fails(
      runAll(files.directory, plan, own, { shardSize: 1 }),
      /same step in all rows, .*5 in row 0 and 6 in row 7/,
    );
  });

  describe('and the plan itself', () => {
    const write = (change: (plan: Json) => unknown, rehash = false) => {
      const file = join(folder, 'plan.json');
      const { hash, ...rest }: Json = JSON.parse(readFileSync(join(folder, 'good.json'), 'utf8'));
      const changed = (change({ ...rest, hash }) ?? {}) as Json;
      const { hash: _, ...fields } = changed;
      const own = createHash('sha256').update(JSON.stringify(fields)).digest('hex');
      writeFileSync(file, JSON.stringify(rehash ? { ...fields, hash: own } : changed));
      return readPlan(file, VERSION);
    };
    beforeEach(() => writePlan(join(folder, 'good.json'), plan));

    it('is read as it was written', async () => {
      assert.deepEqual(await write((plan) => plan), await readPlan(join(folder, 'good.json'), VERSION));
    });

    it('is an error if it was changed, truncated, or made by another version', async () => {
      await fails(
        write((plan) => ({ ...plan, files: [] })),
        /plan\.json: hash: expected [0-9a-f]{64}, the hash of the plan/,
      );
      await fails(readPlan(join(folder, 'good.json'), '9.9.9'), /program: expected 9\.9\.9, the version/);
      const text = readFileSync(join(folder, 'good.json'), 'utf8');
      for (const length of [0, 1, 50, text.length - 5]) {
        writeFileSync(join(folder, 'cut.json'), text.slice(0, length));
        await fails(readPlan(join(folder, 'cut.json'), VERSION), /cut\.json: expected a plan/);
      }
      await fails(
        readPlan(join(folder, 'none.json'), VERSION),
        /none\.json: expected a plan that can be read/,
      );
      await fails(readPlan(join(complete, 'whole.part'), VERSION), /whole\.part/);
      const deep = `${'['.repeat(200_000)}${']'.repeat(200_000)}`;
      const good = readFileSync(join(folder, 'good.json'), 'utf8');
      writeFileSync(join(folder, 'deep.json'), good.replace('{', `{"more":${deep},`));
      await fails(
        readPlan(join(folder, 'deep.json'), VERSION),
        /deep\.json: expected a plan of at most 32 levels/,
      );
    });

    it('gives an error that names the field if somebody hostile has written it', async () => {
      const data: Json = JSON.parse(readFileSync(join(folder, 'good.json'), 'utf8'));
      await everyValue({ ...data, hash: 0 }, async (path) => {
        for (const value of HOSTILE)
          try {
            await write((plan) => replaced(plan, path, value), true);
          } catch (error) {
            assert.ok(error instanceof LossError, `${path.join('.')}: ${(error as Error).stack}`);
            assert.match(error.message, /plan\.json/);
          }
      });
    });
  });
});
