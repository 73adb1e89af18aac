/** Tests that a file has one budget, for itself and for all files inside of it: small files that ask for much are refused. */
import assert from 'node:assert/strict';
import { Bytes } from '../../../lib/tools/rollouts/bytes.js';
import { FileBudget } from '../../../lib/tools/rollouts/file-budget.js';
import { readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { Storage, Strided } from '../../../lib/tools/rollouts/torch/strided.js';
import { isLossError } from '../../support/loss-error.js';
import {
  bytes,
  call,
  global,
  Opcodes,
  pickle,
  tensor,
  text,
  torchFile,
  tuple,
} from '../../support/pickle.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const HELD = /expected objects and copies of at most 201326592 bytes in memory, got more/;
const WORKED = /expected rows and objects of at most \d+ bytes, for the size of the file, got more/;
/** A list that has the result of the same opcodes many times. They follow a value that is memoized under 0. */
const many = (value: Opcodes, times: number, each: Opcodes) =>
  new Opcodes(value.bytes, 'q\x000', ']', ...Array.from({ length: times }, () => [each.bytes, 'a']).flat());
const FIRST = new Opcodes('h\x00');
/** A tuple of two tuples, which have the same two tuples, and so on. */
const doubling = (depth: number) =>
  new Opcodes(text('x').bytes, ...Array.from({ length: depth }, () => ['q\x01', 'h\x01', 0x86]).flat());

describe('the budget of a pickle', () => {
  const folder = temporaryFolder();
  const read = (content: Buffer, keep: string[] = []) => readKept(folder.write('small.pkl', content), keep);
  async function readKept(file: string, keep: string[]) {
    for await (const part of streamRollouts([file], { logprobs: 'optional', keep })) return part;
    return assert.fail('no part');
  }
  const samples = (...rows: unknown[]) => pickle({ samples: rows });
  const row = (more: object) => ({ tokens: [1], response_length: 1, loss_mask: [1], ...more });
  const refuses = (content: Buffer, message: RegExp, keep?: string[]) =>
    assert.rejects(read(content, keep), isLossError('ERR_INVALID_INPUT', message));

  it('lets no key but texts and numbers be turned into text', async () => {
    const key = doubling(20);
    const odd = new Opcodes('}', '(', key.bytes, 'K\x01', text('ok').bytes, 'K\x02', 'u');
    await refuses(pickle(odd), /got a dict of ok$/);
    const { kept } = await read(samples(row({ metadata: odd })), ['metadata']);
    assert.deepEqual(kept[0]!.metadata, Object.assign(Object.create(null), { ok: 2 }));
    await refuses(
      samples(row({ advantages: odd })),
      /advantages: expected numbers or text, got a Python object, dict/,
    );
  });

  it('lets no value of any kind be turned into text for a message', async () => {
    await refuses(
      pickle(
        call(global('numpy._core.numeric', '_frombuffer'), bytes(Buffer.alloc(4)), null, tuple(doubling(20))),
      ),
      /expected data, type, shape and order of an array/,
    );
    const data = {
      format: 'numpy',
      data: bytes(Buffer.alloc(4)),
      shape: [doubling(20)],
      dtype: 'torch.float32',
    };
    const state = { batch_dict: { loss_mask: data } };
    const type = global('skyrl_train.training_batch', 'TrainingInputBatch');
    const batch = call(global('skyrl_train.training_batch', '_rebuild_tensor_batch'), type, state);
    await refuses(pickle(batch), /expected the shape of a tensor, got other values/);
  });

  it('is shared by the torch files inside of it', () => {
    const inner = bytes(torchFile(new Opcodes('N'.repeat(50_000), '0'.repeat(49_999))));
    const load = new Opcodes(global('torch.storage', '_load_from_bytes').bytes, FIRST.bytes, 0x85, 'R');
    return refuses(pickle(many(inner, 2000, load)), WORKED);
  });

  it('has the texts that are encoded', () => {
    const encode = new Opcodes(
      global('_codecs', 'encode').bytes,
      FIRST.bytes,
      text('latin1').bytes,
      0x86,
      'R',
    );
    return refuses(pickle(many(text('x'.repeat(2 ** 20)), 250, encode)), HELD);
  });

  it('has the texts of arrays', () => {
    const size = 2 ** 20;
    const dtype = new Opcodes(call(global('numpy', 'dtype'), 'U1').bytes, '(K\x03', text('<').bytes, 'tb');
    const array = new Opcodes(
      global('numpy._core.numeric', '_frombuffer').bytes,
      '(',
      FIRST.bytes,
      dtype.bytes,
      tuple(size / 4).bytes,
      text('C').bytes,
      'tR',
    );
    return refuses(pickle(many(bytes(Buffer.alloc(size)), 30, array)), HELD);
  });

  it('has one copy of a storage whose rows are not contiguous', () => {
    const entry = Bytes.ofArray('entry', new Uint8Array(2 ** 16));
    const columns = [3, 5].map((shorter) => {
      const storage = new Storage('U8', 2 ** 16 - shorter);
      storage.place(entry);
      return storage;
    });
    assert.equal(columns[0]!.whole(), columns[1]!.whole());
  });

  it('has the copies of all storages', () => {
    const budget = new FileBudget('all.pt', 2 ** 30);
    const entry = new Uint8Array(2 ** 24);
    const copies = Array.from({ length: 13 }, () => Bytes.ofArray('entry', entry, budget));
    for (const copy of copies.slice(0, -1)) copy.kept();
    assert.throws(() => copies.at(-1)!.kept(), isLossError('ERR_INVALID_INPUT', HELD, /^all\.pt/));
  });

  it('has the rows that share what they hold', async () => {
    const column = (shape: number[]) => tensor('0', 4, shape, { strides: [0, 0] });
    const repeated = torchFile(
      { log_probs: column([2 ** 20, 2 ** 10]), response_mask: column([2 ** 20, 2 ** 10]) },
      { 0: new Uint8Array(16) },
    );
    await refuses(repeated, WORKED);
    const shared = new Opcodes(pickleOf(row({ metadata: new Array(100_000).fill('x') })), 'q\x00');
    const rows = new Opcodes(']', shared.bytes, 'a', ...Array.from({ length: 5000 }, () => 'h\x00a'));
    await refuses(pickle({ samples: rows }), WORKED, ['metadata']);
  });

  it('has the columns of each row', () => {
    const names = Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`c${i}`, 1]));
    const shared = new Opcodes(pickleOf(row(names)), 'q\x00');
    const rows = new Opcodes(']', shared.bytes, 'a', ...Array.from({ length: 20_000 }, () => 'h\x00a'));
    return refuses(pickle({ samples: rows }), WORKED);
  });

  it('is enough for arrays of many dimensions, which are refused at once', () => {
    const storage = Storage.of(Bytes.ofArray('file', new Uint8Array(4)), 'F32');
    const shape = new Array<number>(1_000_000).fill(1);
    assert.throws(() => Strided.contiguous(storage, shape), /expected the shape of a tensor/);
  });

  it('is enough for a large batch whose columns are views of a few numbers', async () => {
    const shape = [64, 256];
    const values = Buffer.from(new Float32Array(64 * 256).buffer);
    const view = tensor('1', 64, shape, { strides: [1, 0] });
    const value = Object.fromEntries(
      ['old_log_probs', 'ref_log_prob', 'values', 'advantages', 'rollout_log_probs', 'entropys'].map(
        (name) => [name, view],
      ),
    );
    const file = folder.write(
      'views.pt',
      torchFile(
        { ...value, log_probs: tensor('0', 64 * 256, shape) },
        { 0: values, 1: values.subarray(0, 256) },
      ),
    );
    assert.equal((await readRollouts([file])).tokens, 64 * 256);
  });
});

/** The opcodes of a value, without the protocol and the end. */
const pickleOf = (value: unknown) => pickle(value).subarray(2, -1);
