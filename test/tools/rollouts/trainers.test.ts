/** Tests how the values of trainers' files become rows: what the files of dumps.test.ts do not show. */
import assert from 'node:assert/strict';
import {
  closeSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  expandFiles,
  type ReadOptions,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from '../../../lib/tools/rollouts/index.js';
import { runAlone } from '../../support/alone.js';
import { isLossError } from '../../support/loss-error.js';
import {
  bytes,
  call,
  global,
  Opcodes,
  pickle,
  tensor,
  torchFile,
  tuple,
  unsigned,
} from '../../support/pickle.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const dump = (name: string) => fileURLToPath(new URL(`fixtures/dumps/${name}`, import.meta.url));
const floats = (...values: number[]) => Buffer.from(Float32Array.from(values).buffer);
const OPTIONAL = { logprobs: 'optional' } as const;
const list = (column: unknown) => Array.from(column as ArrayLike<number>);

/** An array of NumPy. */
function numpy(
  type: string,
  order: string,
  shape: number[],
  elements: Uint8Array | Opcodes,
  isFortran = false,
): Opcodes {
  const dtype = new Opcodes(
    call(global('numpy', 'dtype'), type, false, true).bytes,
    tuple(3, order, null, null, null, -1, -1, 0).bytes,
    'b',
  );
  const data = elements instanceof Opcodes ? elements : bytes(elements);
  const make = global('numpy._core.multiarray', '_reconstruct');
  const empty = call(make, global('numpy', 'ndarray'), tuple(0), bytes(Buffer.from('b')));
  return new Opcodes(empty.bytes, tuple(1, tuple(...shape), dtype, isFortran, data).bytes, 'b');
}

describe("rows of trainers' files", () => {
  const folder = temporaryFolder();
  const read = (content: Uint8Array | string, options: ReadOptions = {}, name = 'dump') =>
    readRollouts([folder.write(name, content)], options);
  async function keep(file: string, names: string[], options: StreamOptions = {}) {
    for await (const { kept } of streamRollouts([file], { ...OPTIONAL, keep: names, ...options }))
      return kept;
    return [];
  }

  describe('recognition', () => {
    it('is by content, whatever the name', async () => {
      const value = { log_probs: tensor('0', 2, [1, 2]) };
      for (const name of ['a.jsonl', 'b.parquet', 'c', 'd.xyz', 'e.npz'])
        assert.equal((await read(torchFile(value, { 0: floats(-1, -2) }), {}, name)).tokens, 2);
      assert.equal((await read('{"logprobs": [-1]}\n', {}, 'lines.xyz')).tokens, 1);
    });
    it('of other objects says what there is', async () => {
      await assert.rejects(
        read(pickle({ weights: [1], bias: 2 }), OPTIONAL),
        isLossError('ERR_INVALID_INPUT', /expected a batch or rollouts of .*, got a dict of weights, bias/),
      );
    });
    it('of metrics says that they are none of rollouts', async () => {
      const metrics = [
        '{"step": 1, "data": {"actor/pg_loss": 0.5}}',
        '{"train/loss": 0.5, "train/lr": 1, "step": 2}',
      ];
      for (const line of metrics)
        await assert.rejects(
          read(`${line}\n`, {}, 'metrics.jsonl'),
          isLossError('ERR_INVALID_INPUT', /expected rollouts, got a log of metrics with /),
        );
    });
  });

  describe('without log-probabilities of the current policy', () => {
    it('name a column that can stand in for them', async () => {
      const file = dump('verl/batch_step_5.pkl');
      await assert.rejects(
        readRollouts([file]),
        isLossError(
          'ERR_MISSING_INPUT',
          /row 1: logprobs: expected a list of numbers.*let old_logprobs stand in: --column logprobs=old_logprobs/,
        ),
      );
      const { batch } = await readRollouts([file], { rename: { logprobs: 'old_logprobs' } });
      assert.deepEqual(batch.logprob, batch.oldLogprob);
    });
    it('have rows, rewards and the lengths that the file states', async () => {
      const { batch, rows, tokens } = await readRollouts([dump('trinity/explorer_output.jsonl')], OPTIONAL);
      assert.deepEqual({ rows, logprob: batch.logprob }, { rows: 6, logprob: undefined });
      assert.equal(tokens, batch.cuSeqlens.at(-1));
      assert.ok(tokens > rows);
      assert.equal((batch.rewards as Float64Array)[0], 1.5);
    });
    it('can be in files of tensors', async () => {
      const header = JSON.stringify({
        old_logprobs: { dtype: 'F32', shape: [1, 2], data_offsets: [0, 8] },
        reward: { dtype: 'F32', shape: [1], data_offsets: [8, 12] },
      });
      const content = Buffer.concat([unsigned(header.length, 8), Buffer.from(header), floats(-1, -2, 0.5)]);
      const { batch } = await read(content, OPTIONAL, 'old.safetensors');
      assert.deepEqual(
        [batch.logprob, list(batch.oldLogprob), list(batch.rewards)],
        [undefined, [-1, -2], [0.5]],
      );
      await assert.rejects(
        read(content, {}, 'old.safetensors'),
        isLossError('ERR_MISSING_INPUT', /logprobs or logprob: expected a tensor/),
      );
    });
    it('may not be mixed with others', async () => {
      const lines = ['{"logprobs": [-1], "old_logprobs": [-1]}', '{"old_logprobs": [-1]}'];
      await assert.rejects(
        read(lines.join('\n'), OPTIONAL, 'mixed.jsonl'),
        isLossError('ERR_MISSING_INPUT', /line 2: logprobs: expected .* in every row or in none/),
      );
    });
  });

  describe('slime', () => {
    const train = (logProbs: number[], engine: number[], more = {}) =>
      torchFile(
        {
          format_version: 2,
          samples: [
            {
              response_lengths: 2,
              log_probs: tensor('0', 2, [2]),
              rollout_log_probs: tensor('1', 2, [2]),
              ...more,
            },
          ],
        },
        { 0: floats(...logProbs), 1: floats(...engine) },
      );
    async function policies(content: Uint8Array, rename: Record<string, string> = {}) {
      const warnings: string[] = [];
      const onWarning = ({ message }: Error) => warnings.push(message);
      const { batch } = await read(content, { ...OPTIONAL, rename, onWarning });
      return {
        logprob: batch.logprob && list(batch.logprob),
        old: batch.oldLogprob && list(batch.oldLogprob),
        warnings,
      };
    }

    it('takes log_probs near the engine for the old policy, and says so', async () => {
      const { logprob, old, warnings } = await policies(train([-1, -2], [-1.015625, -2]));
      assert.deepEqual([logprob, old], [undefined, [-1, -2]]);
      assert.match(warnings[0]!, /count as the old policy's.*--column logprobs=log_probs/);
    });
    it('takes log_probs far from the engine for the current policy, and says so', async () => {
      const { logprob, old, warnings } = await policies(train([-1, -2], [-1.5, -2]));
      assert.deepEqual(
        [logprob, old],
        [
          [-1, -2],
          [-1.5, -2],
        ],
      );
      assert.match(warnings[0]!, /count as the current policy's.*--column old_logprobs=log_probs/);
    });
    it('takes what the user says', async () => {
      const current = { logprobs: 'log_probs', old_logprobs: 'rollout_log_probs' };
      const { logprob, old, warnings } = await policies(train([-1, -2], [-1, -2.25]), current);
      assert.deepEqual([logprob, old, warnings], [[-1, -2], [-1, -2.25], []]);
      const { old: recomputed } = await policies(train([-1, -2], [-5, -2]), { old_logprobs: 'log_probs' });
      assert.deepEqual(recomputed, [-1, -2]);
    });
    it('takes the response of tokens, and all numbers of long lists', async () => {
      const length = 2500;
      const tokens = Array.from({ length: length + 3 }, (_, i) => i);
      const logprobs = Array.from({ length }, (_, i) => -(i + 1) / 64);
      const samples = [
        {
          tokens,
          response_length: length,
          rollout_log_probs: logprobs,
          loss_mask: null,
          reward: { a: 1 },
          index: 7,
        },
      ];
      const file = folder.write('long.pt', torchFile({ samples }));
      const { batch, rows } = await readRollouts([file], { rename: { logprobs: 'rollout_logprobs' } });
      assert.equal(rows, 1);
      assert.deepEqual(list(batch.logprob), logprobs);
      assert.equal(batch.rewards, undefined);
      assert.deepEqual(await keep(file, ['tokens']), [{ tokens: tokens.slice(3) }]);
    });
  });

  describe('tensors', () => {
    it('of every element type', async () => {
      const types: [string, Uint8Array][] = [
        ['Double', Buffer.from(Float64Array.of(-1, -2).buffer)],
        ['Half', Buffer.from(Uint16Array.of(0xbc00, 0xc000).buffer)],
        ['BFloat16', Buffer.from(Uint16Array.of(0xbf80, 0xc000).buffer)],
        ['Long', Buffer.from(BigInt64Array.of(-1n, -2n).buffer)],
        ['Int', Buffer.from(Int32Array.of(-1, -2).buffer)],
        ['Short', Buffer.from(Int16Array.of(-1, -2).buffer)],
        ['Char', Buffer.from(Int8Array.of(-1, -2).buffer)],
      ];
      for (const [type, storage] of types) {
        const value = {
          log_probs: tensor('0', 2, [1, 2], { type }),
          response_mask: tensor('1', 2, [1, 2], { type: 'Bool' }),
        };
        const { batch } = await read(torchFile(value, { 0: storage, 1: Buffer.of(1, 1) }));
        assert.deepEqual(list(batch.logprob), [-1, -2], type);
      }
    });
    it('lose the padding on the right, and masked tokens before it stay', async () => {
      const mask = [1, 0, 1, 0, 0, 0, 0, 0];
      const value = { log_probs: tensor('0', 8, [2, 4]), response_mask: tensor('1', 8, [2, 4]) };
      const { batch, tokens } = await read(
        torchFile(value, { 0: floats(-1, -2, -3, -4, -5, -6, -7, -8), 1: floats(...mask) }),
      );
      assert.deepEqual([list(batch.cuSeqlens), tokens], [[0, 3, 3], 2]);
      assert.deepEqual(list(batch.logprob), [-1, -2, -3]);
    });
    it('of rows of different lengths', async () => {
      // A consolidated TensorDict: float32 values at 0, int64 offsets at 24.
      const values = Buffer.concat([
        floats(-1, -2, -3, -4, -5, 0),
        Buffer.from(BigInt64Array.of(0n, 2n, 5n).buffer),
      ]);
      const leaf = (type: string, shape: number[], start: number, stop: number, padding: number) =>
        tuple(`torch.${type}`, shape, start, stop, padding);
      const leaves = {
        '<NJT_VALUES>log_probs': leaf('float32', [5], 0, 24, 4),
        '<NJT_OFFSETS>log_probs': leaf('int64', [3], 24, 48, 0),
      };
      const rebuild = global('tensordict._reductions', '_rebuild_tensordict_files_consolidated');
      const batch = torchFile(call(rebuild, { leaves }, tensor('0', 48, [48], { type: 'Byte' })), {
        0: values,
      });
      const state = tuple(bytes(batch), {}, {});
      const proto = new Opcodes(global('verl.protocol', 'DataProto').bytes, ')', 0x81, state.bytes, 'b');
      const { batch: rows } = await read(pickle(proto));
      assert.deepEqual(
        [list(rows.cuSeqlens), list(rows.logprob)],
        [
          [0, 2, 5],
          [-1, -2, -3, -4, -5],
        ],
      );
    });
    it("of rows of different lengths, with verl's numpy method", async () => {
      const row = (...values: number[]) =>
        tuple('float32', tuple(values.length), numpy('u1', '|', [4 * values.length], floats(...values)));
      const nested = tuple('jagged', [row(-1, -2), row(-3)]);
      const state = tuple(tuple(tuple(2), null, { log_probs: nested }), {}, {});
      const proto = new Opcodes(global('verl.protocol', 'DataProto').bytes, ')', 0x81, state.bytes, 'b');
      const { batch } = await read(pickle(proto));
      assert.deepEqual(
        [list(batch.cuSeqlens), list(batch.logprob)],
        [
          [0, 2, 3],
          [-1, -2, -3],
        ],
      );
    });
    it("of NumPy in Fortran's order and big-endian", async () => {
      const elements = floats(-1, -3, -2, -4).swap32();
      const { batch } = await read(pickle({ log_probs: numpy('f4', '>', [2, 2], elements, true) }));
      assert.deepEqual(list(batch.logprob), [-1, -2, -3, -4]);
    });
  });

  it('arrays of NumPy in protocol 2 are read, where bytes are text', async () => {
    const latin = floats(-1, -2).toString('latin1');
    const data = call(global('_codecs', 'encode'), latin, 'latin1');
    const { batch } = await read(pickle({ log_probs: numpy('f4', '<', [1, 2], data) }));
    assert.deepEqual(list(batch.logprob), [-1, -2]);
  });

  describe('Trinity-RFT', () => {
    it('frames hold several experiences', async () => {
      const { rows, batch } = await readRollouts([dump('trinity/experiences.trxp')], OPTIONAL);
      assert.equal(rows, 3);
      assert.deepEqual(batch.oldLogprob, batch.rolloutLogprob);
    });
    it('groups are those of a batch', async () => {
      const [first] = await keep(dump('trinity/experiences.trxp'), ['task_id', 'run_id', 'step']);
      assert.match(String(first!.task_id), /^\d+\/\d+$/);
    });
  });

  it('SkyRL: rows that only fill up a batch are dropped, and groups are numbered', async () => {
    const array = (shape: number[], ...values: number[]) => ({
      format: 'numpy',
      data: bytes(floats(...values)),
      shape: tuple(...shape),
      dtype: 'float32',
    });
    const batch = {
      action_log_probs: array([3, 2], 9, -1, -2, -3, 9, -1),
      response_mask: array([3, 2], 0, 1, 1, 1, 0, 1),
      loss_mask: array([3, 2], 0, 1, 1, 0, 0, 0),
      values: null,
    };
    // A tensor of bfloat16 is a torch file.
    const advantages = torchFile(tensor('0', 6, [3, 2], { type: 'BFloat16' }), {
      0: Buffer.from(Uint16Array.of(0, 0x3f80, 0x4000, 0x4040, 0, 0).buffer),
    });
    Object.assign(batch, { advantages: { format: 'torch', data: bytes(advantages) } });
    const metadata = { pad_size: 1, policy_prompt_boundaries: [tuple(0, 1), tuple(1, 2)] };
    const module = 'skyrl_train.training_batch';
    const value = call(global(module, '_rebuild_tensor_batch'), global(module, 'TrainingInputBatch'), {
      batch_dict: batch,
      batch_size: 3,
      metadata,
    });
    const { batch: rows } = await read(pickle(value), OPTIONAL);
    assert.deepEqual(list(rows.cuSeqlens), [0, 1, 3]);
    assert.deepEqual(list(rows.oldLogprob), [-1, -2, -3]);
    assert.deepEqual(list(rows.actionMask), [1, 1, 0]);
    assert.deepEqual(list(rows.groupIds), [0, 1]);
    assert.deepEqual(list(rows.advantages), [1, 2, 3]);
  });

  describe('JSON lines', () => {
    it('of NeMo-RL with NaN, Infinity and rows that do not count', async () => {
      const line = (mask: number) =>
        `{"token_ids": [[5, 6, 7, 0]], "token_loss_mask": [[0, 1, 1, 0]], "sample_loss_mask": [${mask}.0], ` +
        '"input_lengths": [3], "prev_logprobs": [[NaN, -1, -Infinity, 0]], "rewards": [0.5], "filtered_rewards": []}';
      const { batch, tokens } = await read(`${line(1)}\n${line(0)}\n`, OPTIONAL, 'nemo.jsonl');
      assert.deepEqual(list(batch.oldLogprob), [-1, Number.NEGATIVE_INFINITY, -1, Number.NEGATIVE_INFINITY]);
      assert.deepEqual([list(batch.actionMask), tokens, list(batch.rewards)], [[1, 1, 0, 0], 2, [0.5, 0.5]]);
    });
    it('of prime-rl with null', async () => {
      const line = {
        token_ids: [1, 2, 3],
        loss_mask: [false, true, true],
        inference_logprobs: [0, -1, null],
        trainer_logprobs: [-9, -2, -3],
      };
      const { batch } = await read(JSON.stringify(line), {}, 'prime.jsonl');
      assert.deepEqual(list(batch.logprob), [-2, -3]);
      assert.deepEqual(list(batch.oldLogprob), [-1, Number.NaN]);
    });
    it('of verl, with texts under the names of the report', async () => {
      const file = dump('verl/rollouts/5.jsonl');
      const { batch } = await readRollouts([file], OPTIONAL);
      assert.equal((batch.rewards as Float64Array)[0], 0.5);
      const [first] = await keep(file, ['prompt', 'response', 'gts']);
      assert.deepEqual(Object.keys(first!), ['prompt', 'response', 'gts']);
    });
    it('of ROLL: one line of all rows', async () => {
      const line = { responses: ['a', 'b'], scores: [1, 0.5], global_step: [6, 6], domain: ['x', 'y'] };
      const file = folder.write('roll.jsonl', JSON.stringify(line));
      const { batch, rows } = await readRollouts([file], OPTIONAL);
      assert.deepEqual([rows, list(batch.rewards), list(batch.step)], [2, [1, 0.5], [6, 6]]);
      assert.deepEqual(await keep(file, ['response', 'domain']), [
        { response: 'a', domain: 'x' },
        { response: 'b', domain: 'y' },
      ]);
    });
    it("of the package's own columns stay as they are", async () => {
      const line = { logprobs: [-1], input: 'x', output: 'y', score: 5, step: 1, reward: 2 };
      const { batch } = await read(JSON.stringify(line), {}, 'own.jsonl');
      assert.deepEqual(list(batch.rewards), [2]);
    });
  });

  it('a directory is its files, in the order of their numbers, without markers', async () => {
    const directory = folder.path('step');
    mkdirSync(join(directory, 'more'), { recursive: true });
    for (const name of ['rank_10', 'rank_2', 'more/rank_1', '.hidden'])
      writeFileSync(join(directory, `${name}.jsonl`), '{"logprobs": [-1]}\n');
    writeFileSync(join(directory, 'STABLE'), '');
    const names = ['more/rank_1', 'rank_2', 'rank_10'].map((name) => `${directory}/${name}.jsonl`);
    assert.deepEqual(await expandFiles([directory]), names);
    assert.deepEqual(await expandFiles([`${directory}/rank_*.jsonl`]), names.slice(1));
    mkdirSync(folder.path('empty'));
    await assert.rejects(
      expandFiles([folder.path('empty')]),
      isLossError('ERR_INVALID_INPUT', /expected a directory with files, got none/),
    );
  });

  it('JSON lines are recognised after some malformed lines, but are not looked at for ever', async () => {
    const [first] = readFileSync(dump('prime-rl/token_exports/step_3/rank_0.jsonl'), 'utf8').split('\n', 1);
    const read = (malformed: number) => {
      const file = folder.write(`after-${malformed}.jsonl`, `${'x\n'.repeat(malformed)}${first}\n`);
      return readRollouts([file], { skipBadRows: true });
    };
    assert.equal((await read(99)).rows, 1);
    await assert.rejects(read(100), isLossError('ERR_INVALID_INPUT', /at least one good row/));
  });

  it('a large .pt takes little memory', () => {
    const [rows, width] = [4096, 16_384];
    const columns = ['log_probs', 'old_log_probs', 'advantages'];
    const size = 4 * rows * width;
    const file = folder.path('large.pt');
    writeLarge(file, columns, size, (key) => tensor(key, rows * width, [rows, width]));
    const { result, memory } = runAlone<number>(
      `const { streamRollouts } = await import(given[0]);
      let tokens = 0;
      for await (const part of streamRollouts([given[1]], { maxTokens: 2 ** 19 })) tokens += part.tokens;
      return tokens;`,
      [new URL('../../../lib/tools/rollouts/index.js', import.meta.url).href, file],
    );
    assert.equal(result, rows * width);
    // When garbage is collected depends on the machine.
    assert.ok(memory < 400e6, `took ${memory} bytes for a file of ${3 * size} bytes`);
  });
});

/** Writes a file by torch.save whose storages are holes of a sparse file. */
function writeLarge(file: string, names: string[], size: number, make: (key: string) => Opcodes): void {
  const value = Object.fromEntries(names.map((name, i) => [name, make(String(i))]));
  const small = torchFile(value, Object.fromEntries(names.map((_, i) => [String(i), new Uint8Array(0)])));
  // The headers of the small archive are spread, so that each storage gets its bytes after its header.
  const descriptor = openSync(file, 'w');
  const directory = small.indexOf('PK\x01\x02');
  let from = 0;
  let position = 0;
  const shift = new Map<number, number>();
  for (let at = 0; at >= 0 && at < directory; ) {
    const next = small.indexOf('PK\x03\x04', at + 4);
    const end = next < 0 || next > directory ? directory : next;
    shift.set(at, position);
    writeSync(descriptor, small.subarray(from, end), 0, end - from, position);
    position += end - from;
    if (small.toString('latin1', at + 30).startsWith('archive/data/')) position += size;
    from = end;
    at = end;
  }
  const tail = Buffer.from(small.subarray(directory));
  for (let at = 0; tail.toString('latin1', at, at + 4) === 'PK\x01\x02'; ) {
    const name = tail.toString('latin1', at + 46, at + 46 + tail.readUInt16LE(at + 28));
    if (name.startsWith('archive/data/')) {
      tail.writeUInt32LE(size, at + 20);
      tail.writeUInt32LE(size, at + 24);
    }
    tail.writeUInt32LE(shift.get(tail.readUInt32LE(at + 42))!, at + 42);
    at += 46 + name.length;
  }
  tail.writeUInt32LE(position, tail.length - 6);
  ftruncateSync(descriptor, position);
  writeSync(descriptor, tail, 0, tail.length, position);
  closeSync(descriptor);
}
