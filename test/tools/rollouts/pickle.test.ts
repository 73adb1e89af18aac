/** Tests that no pickle runs anything, and that hostile pickles and archives end in a clear error. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { type ReadOptions, readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import {
  bytes,
  call,
  global,
  Opcodes,
  pickle,
  tensor,
  text,
  torchEntries,
  torchFile,
  tuple,
  unsigned,
  zip,
} from '../../support/pickle.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const floats = (...values: number[]) => Buffer.from(Float32Array.from(values).buffer);
/** A dump of slime with one row, whose metadata are a value. */
const dump = (metadata: unknown) => ({
  rollout_id: 1,
  samples: [{ tokens: [1, 2, 3], response_length: 2, reward: 1, loss_mask: [1, 1], metadata }],
});
const MEGABYTES = 2 ** 20;

describe('pickles', () => {
  const folder = temporaryFolder();
  const read = (file: string, options: ReadOptions = {}) =>
    readRollouts([file], { logprobs: 'optional', ...options });

  /** Asserts that a file is refused: without much memory, with a message that matches the patterns. */
  async function refuses(content: Buffer, ...patterns: RegExp[]): Promise<void> {
    const file = folder.write('bad.pkl', content);
    const before = process.resourceUsage().maxRSS;
    await assert.rejects(read(file), isLossError(['ERR_INVALID_INPUT', 'ERR_OUT_OF_MEMORY'], ...patterns));
    assert.ok(process.resourceUsage().maxRSS - before < (300 * MEGABYTES) / 1024, 'took too much memory');
  }

  it('of plain values are read', async () => {
    const { rows, tokens } = await read(folder.write('good.pkl', pickle(dump({ a: [1, 'b', null] }))));
    assert.deepEqual([rows, tokens], [1, 2]);
  });

  it('in the format of torch.save before PyTorch 1.6 are read, and nothing else after them', async () => {
    const magic = Buffer.from([0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19]);
    const storage = tuple('storage', global('torch', 'FloatStorage'), '7', 'cpu', 4, null);
    const args = tuple(new Opcodes(storage.bytes, 'Q'), 0, tuple(2, 2), tuple(2, 1), false, {});
    const value = {
      log_probs: new Opcodes(global('torch._utils', '_rebuild_tensor_v2').bytes, args.bytes, 'R'),
    };
    const legacy = (keys: string[], count: number) =>
      Buffer.concat([
        pickle(new Opcodes(magic)),
        pickle(1001),
        pickle({ little_endian: true }),
        pickle(value),
        pickle(keys),
        unsigned(count, 8),
        floats(-1, -2, -3, -4),
      ]);
    const { batch } = await readRollouts([folder.write('legacy.pt', legacy(['7'], 4))]);
    assert.deepEqual(Array.from(batch.logprob), [-1, -2, -3, -4]);
    await refuses(legacy(['8'], 4), /expected the storages of the tensors, got another one/);
    await refuses(legacy(['7'], 5), /expected the storages of the tensors, got another one/);
    await refuses(legacy(['7', '7'], 4), /expected the keys of 1 storages/);
    await refuses(Buffer.concat([legacy(['7'], 4), pickle(1)]), /expected the end after the storages/);
    await refuses(legacy(['7'], 4).subarray(0, -1), /expected 16 bytes at byte \d+/);
  });

  it('with frames between the numbers of a list are read', async () => {
    const numbers = (count: number) =>
      Buffer.concat(Array.from({ length: count }, () => Buffer.from([0x4b, 1])));
    const frame = Buffer.concat([Buffer.from([0x95]), unsigned(2, 8)]);
    const mask = new Opcodes(']', '(', numbers(30), frame, numbers(30), 'e');
    const samples = [{ response_length: 60, loss_mask: mask }];
    const { tokens } = await read(folder.write('frames.pkl', pickle({ samples })));
    assert.equal(tokens, 60);
  });

  describe('run nothing', () => {
    const marker = () => folder.path('marker');
    const command = () => `touch ${marker()}`;
    const stackGlobal = (module: string, name: string) =>
      new Opcodes(text(module).bytes, text(name).bytes, 0x93);
    const EVIL = [
      ['os', 'system'],
      ['posix', 'system'],
      ['nt', 'system'],
      ['builtins', 'eval'],
      ['builtins', 'exec'],
      ['builtins', '__import__'],
      ['__builtin__', 'eval'],
      ['subprocess', 'Popen'],
      ['subprocess', 'check_output'],
      ['runpy', 'run_path'],
    ] as const;
    const UNKNOWN = [
      ['builtins', 'getattr'],
      ['torch', 'load'],
      ['torch.storage', '_load_from_bytes.__globals__'],
      ['numpy', 'load'],
      ['child_process', 'execSync'],
      ['__proto__', 'constructor'],
    ] as const;

    afterEach(() => assert.ok(!existsSync(marker()), 'a command ran'));

    for (const [module, name] of EVIL) {
      const message = new RegExp(
        `got the function ${module}\\.${name.replaceAll('.', '\\.')} at byte \\d+\\.`,
      );
      it(`${module}.${name} by GLOBAL and REDUCE`, () =>
        refuses(pickle(dump(call(global(module, name), command()))), message));
      it(`${module}.${name} by STACK_GLOBAL and REDUCE`, () =>
        refuses(pickle(dump(call(stackGlobal(module, name), command()))), message));
    }

    for (const [module, name] of UNKNOWN)
      it(`${module}.${name}, which is skipped as an object of an unknown class`, async () => {
        for (const named of [global(module, name), stackGlobal(module, name)]) {
          const file = folder.write('unknown.pkl', pickle(dump(call(named, command()))));
          assert.equal((await read(file)).rows, 1);
        }
      });

    it('the place of a name is that of its byte in the file', () =>
      refuses(
        pickle(global('os', 'system')),
        /got the function os\.system at byte 2\. The pickle was read without running/,
      ));

    const args = () => tuple(command()).bytes;
    const system = () => global('os', 'system').bytes;
    it('INST', () =>
      refuses(pickle(new Opcodes('(', text(command()).bytes, 'ios\nsystem\n')), /got INST, at byte/));
    it('OBJ', () => refuses(pickle(new Opcodes('(', text('x').bytes, 'o')), /got OBJ, at byte/));
    it('NEWOBJ', () =>
      refuses(pickle(new Opcodes(system(), args(), 0x81)), /got the function os\.system at/));
    it('NEWOBJ_EX', () => {
      const experience = global('trinity.common.experience', 'Experience').bytes;
      return refuses(
        pickle(new Opcodes(experience, ')', '}', 0x92)),
        /expected a class of the known ones, got trinity\.common\.experience\.Experience, at byte/,
      );
    });
    for (const [name, opcode, size] of [
      ['EXT1', 0x82, 1],
      ['EXT2', 0x83, 2],
      ['EXT4', 0x84, 4],
    ] as const)
      it(name, () =>
        refuses(pickle(new Opcodes(opcode, unsigned(1, size))), new RegExp(`got ${name}, at byte`)),
      );
    it('PERSID', () => refuses(pickle(new Opcodes('Pos.system\n')), /got PERSID, at byte/));
    it('BINPERSID outside of an archive', () =>
      refuses(pickle(new Opcodes(text('x').bytes, 'Q')), /a reference to data outside of it/));
    for (const [name, opcode] of [
      ['NEXT_BUFFER', 0x97],
      ['READONLY_BUFFER', 0x98],
      ['DUP', 0x32],
    ] as const)
      it(name, () => refuses(pickle(new Opcodes('N', opcode)), new RegExp(`got ${name}, at byte`)));

    it('BUILD of what is not an object', () =>
      refuses(pickle(new Opcodes('}', '}', 'b')), /expected an object of a known class/));
    it('BUILD of a class', () => {
      const type = global('verl.protocol', 'DataProto').bytes;
      return refuses(pickle(new Opcodes(type, '}', 'b')), /expected an object of a known class/);
    });
    it('a call of what is not a function', async () => {
      await refuses(pickle(call(text('os.system'), 'x')), /expected a function of the known ones/);
      await refuses(pickle(call(global('numpy', 'ndarray'), 'x')), /expected a function.*got numpy\.ndarray/);
      await refuses(pickle(call(global('torch', 'float32'), 'x')), /expected a function.*got torch\.float32/);
    });
    it('an object of a function', () =>
      refuses(
        pickle(new Opcodes(global('torch.storage', '_load_from_bytes').bytes, ')', 0x81)),
        /expected a class of the known ones, got torch\.storage\._load_from_bytes/,
      ));
    it('known functions with other arguments', async () => {
      const names = [
        ['torch.storage', '_load_from_bytes'],
        ['torch._utils', '_rebuild_tensor_v2'],
        ['tensordict._reductions', '_make_td'],
        ['tensordict._reductions', '_rebuild_tensordict_files_consolidated'],
        ['_codecs', 'encode'],
        ['numpy.core.multiarray', 'scalar'],
        ['numpy._core.numeric', '_frombuffer'],
        ['skyrl_train.training_batch', '_rebuild_tensor_batch'],
      ] as const;
      for (const [module, name] of names)
        for (const given of [[], ['x'], [-1, -1, -1, -1], [{}, {}], [null, null, null]])
          await refuses(
            pickle(dump(call(global(module, name), ...given))),
            /expected .*, got .* at byte \d+/,
          );
    });
    it('a second pickle after the first', () =>
      refuses(
        Buffer.concat([pickle(dump(null)), pickle(global('os', 'system'))]),
        /expected the end of the pickle/,
      ));
    it('torch files inside of torch files, more than three deep', () => {
      let inner: Opcodes = text('x');
      for (let i = 0; i < 6; i++)
        inner = call(global('torch.storage', '_load_from_bytes'), bytes(torchFile(inner)));
      return refuses(pickle(inner), /expected at most 3 pickles one inside the other/);
    });

    it('keys that objects of JavaScript inherit', async () => {
      const metadata = { __proto__: null, constructor: 1, prototype: 2 };
      const samples = [
        new Map<string, unknown>([
          ['__proto__', { reward: 5 }],
          ['constructor', 'x'],
          ['tokens', [1]],
          ['response_length', 1],
          ['loss_mask', [1]],
          ['metadata', new Map(Object.entries(metadata))],
        ]),
      ];
      const file = folder.write('proto.pkl', pickle({ rollout_id: 1, samples }));
      for await (const { rows, batch, kept } of streamRollouts([file], {
        logprobs: 'optional',
        keep: ['metadata', '__proto__', 'constructor'],
      })) {
        assert.equal(rows, 1);
        assert.equal(batch.rewards, undefined);
        assert.equal((kept[0] as Record<string, unknown>).constructor, 'x');
      }
      assert.equal(({} as Record<string, unknown>).reward, undefined);
    });
  });

  describe('that would fill the memory', () => {
    const HUGE = 2n ** 62n;
    for (const [name, opcodes] of [
      ['LONG4', new Opcodes(0x8b, unsigned(2 ** 31 - 1, 4))],
      ['BINUNICODE', new Opcodes('X', unsigned(2 ** 32 - 1, 4))],
      ['BINUNICODE8', new Opcodes(0x8d, unsigned(HUGE, 8))],
      ['BINBYTES', new Opcodes('B', unsigned(2 ** 32 - 1, 4))],
      ['BINBYTES8', new Opcodes(0x8e, unsigned(HUGE, 8))],
      ['BYTEARRAY8', new Opcodes(0x96, unsigned(HUGE, 8))],
      ['FRAME', new Opcodes(0x95, unsigned(HUGE, 8))],
    ] as const)
      it(`${name} that is longer than the file`, () =>
        refuses(pickle(opcodes), /expected at most the \d+ bytes that are left, got \d+, at byte 2/));

    it('an integer of many bytes', () =>
      refuses(
        pickle(new Opcodes(0x8b, unsigned(70_000, 4), Buffer.alloc(70_000, 1))),
        /expected integers of at most 64 bytes/,
      ));
    it('a memo at a huge index', async () => {
      const put = new Opcodes(
        text('a').bytes,
        'r',
        unsigned(2 ** 32 - 1, 4),
        'j',
        unsigned(2 ** 32 - 1, 4),
        '0',
      );
      const file = folder.write('memo.pkl', pickle(dump(put)));
      assert.equal((await read(file)).rows, 1);
      await refuses(pickle(new Opcodes('j', unsigned(2 ** 32 - 1, 4))), /expected a value that was memoized/);
    });
    it('many containers', async () => {
      for (const opcode of ['}', ']', ')', '(', 'N'])
        await refuses(
          Buffer.concat([Buffer.from([0x80, 2]), Buffer.alloc(8 * MEGABYTES, opcode), Buffer.from('.')]),
          /expected (objects and copies|at most \d+ (values at once|open containers)).*, got more/,
        );
    });
    it('many shared values', () => {
      const many = Buffer.concat([
        Buffer.from([0x80, 4]),
        Buffer.from('}'),
        Buffer.alloc(6 * MEGABYTES, 0x94),
      ]);
      return refuses(many, /expected at most \d+ shared values/);
    });
    it('deep nesting', async () => {
      const depth = 100_000;
      const deep = new Opcodes(Buffer.alloc(depth, ']'), Buffer.alloc(depth - 1, 'a'));
      const file = folder.write('deep.pkl', pickle(dump(deep)));
      assert.equal((await read(file)).rows, 1);
      await assert.rejects(
        async () => {
          for await (const _ of streamRollouts([file], { logprobs: 'optional', keep: ['metadata'] }));
        },
        isLossError('ERR_INVALID_INPUT', /row 1: metadata: expected a value of less size/),
      );
    });
    it('lists that contain themselves, or that double', async () => {
      const self = new Opcodes(']', 'q\x00', 'h\x00', 'a');
      const pieces = [text('x').bytes];
      for (let i = 0; i < 60; i++) pieces.push(Buffer.from([0x71, i + 1, 0x68, i + 1, 0x86]));
      for (const metadata of [self, new Opcodes(...pieces)]) {
        const file = folder.write('shared.pkl', pickle(dump(metadata)));
        assert.equal((await read(file)).rows, 1);
        await assert.rejects(
          async () => {
            for await (const _ of streamRollouts([file], { logprobs: 'optional', keep: ['metadata'] }));
          },
          isLossError('ERR_INVALID_INPUT', /row 1: metadata: expected a value of less size/),
        );
      }
    });
    it('a list of more numbers than a row may have', async () => {
      const samples = [{ tokens: [1], response_length: 1, rollout_log_probs: new Array(5000).fill(-0.5) }];
      const file = folder.write('long.pkl', pickle({ samples }));
      await assert.rejects(
        read(file, { maxRowTokens: 4999 }),
        isLossError(
          'ERR_INVALID_INPUT',
          /row 1: rollout_logprobs: expected at most 4999 tokens in a row, got 5000/,
        ),
      );
    });
  });

  describe('with tensors', () => {
    const batch = (logprobs: Opcodes) => ({ log_probs: logprobs, response_mask: tensor('0', 4, [2, 2]) });
    const file = (value: unknown, size = 4) =>
      torchFile(value, { 0: floats(...new Array<number>(size).fill(1)), 1: floats(1, 2, 3, 4) });

    it('that are views with an offset and strides', async () => {
      const good = folder.write('good.pt', file(batch(tensor('1', 4, [2, 2], { strides: [1, 2] }))));
      assert.deepEqual(Array.from((await readRollouts([good])).batch.logprob), [1, 3, 2, 4]);
    });
    it('outside of their storage', async () => {
      for (const options of [
        { offset: 1 },
        { strides: [2, 2] },
        { strides: [-1, 1] },
        { offset: -1 },
        { strides: [2 ** 31 - 1, 2 ** 31 - 1] },
        { strides: [1] },
      ])
        await refuses(file(batch(tensor('1', 4, [2, 2], options))), /expected .*tensor.*at byte \d+/);
      await refuses(
        file(batch(tensor('1', 4, [2 ** 30, 2 ** 30, 2 ** 30], { strides: [0, 0, 0] }))),
        /expected/,
      );
      await refuses(
        file(batch(tensor('1', 8, [2, 2]))),
        /expected a storage of 8 elements of 4 bytes, got 16 bytes/,
      );
      await refuses(file(batch(tensor('7', 4, [2, 2]))), /expected an entry archive\/data\/7, got none/);
    });
    it('of huge shapes in tiny storages', async () => {
      const repeated = (shape: number[]) => ({
        log_probs: tensor('1', 4, shape, { strides: [0, 0] }),
        response_mask: tensor('0', 4, shape, { strides: [0, 0] }),
      });
      await refuses(file(repeated([2 ** 30, 1])), /expected at most 1048576 rows, got more/);
      await refuses(file(repeated([1, 2 ** 30])), /expected a mask|expected at most \d+ tokens/);
      await refuses(
        file(repeated([1, 2 ** 21])),
        /expected rows and objects of at most \d+ bytes, for the size/,
      );
    });
    it('of unknown element types', () =>
      refuses(
        file(batch(tensor('1', 2, [2, 1], { type: 'ComplexFloat' }))),
        /row 1: logprobs: expected numbers or text, got a Python object, torch\.ComplexFloatStorage$/,
      ));
  });

  describe('in archives', () => {
    const value = { log_probs: tensor('0', 4, [2, 2]) };
    const entries = () => torchEntries(value, { 0: floats(-1, -2, -3, -4) });
    const changed = (change: Partial<ReturnType<typeof entries>[number]>) =>
      entries().map((entry) => (entry.name === 'archive/data/0' ? { ...entry, ...change } : entry));

    it('that are whole are read', async () => {
      const { rows, batch } = await readRollouts([folder.write('whole.pt', zip(entries()))]);
      assert.deepEqual([rows, ...batch.logprob], [2, -1, -2, -3, -4]);
    });
    it('with sizes and places in 64 bits', async () => {
      const wide = entries().map((entry) => ({ ...entry, isWide: true }));
      const { batch } = await readRollouts([folder.write('wide.pt', zip(wide))]);
      assert.deepEqual(Array.from(batch.logprob), [-1, -2, -3, -4]);
      const large = wide.map((entry) => ({ ...entry, sizes: [2 ** 40, 2 ** 40] as const }));
      await refuses(zip(large), /expected entries that do not overlap/);
      await refuses(zip(wide, { directoryAt: 2 ** 50 }), /expected a directory before its end/);
    });
    it('with entries that are compressed', () =>
      refuses(
        zip(changed({ method: 8 })),
        /expected entries that are stored as they are, got archive\/data\/0/,
      ));
    it('with sizes that differ', () =>
      refuses(zip(changed({ sizes: [16, 2 ** 31] })), /expected the same size stored and in use/));
    it('with sizes beyond the file', async () => {
      await refuses(zip(changed({ sizes: [2 ** 31, 2 ** 31] })), /expected entries that do not overlap/);
      await refuses(zip(changed({ sizes: [2 ** 32 - 1, 2 ** 32 - 1] })), /expected the ZIP64 field/);
    });
    it('with entries that overlap', () =>
      refuses(zip(changed({ at: 0 })), /expected entries that do not overlap/));
    it('with two entries of a name', () =>
      refuses(zip([...entries(), entries()[0]!]), /expected one entry of each name/));
    it('with names that leave the folder', () =>
      refuses(
        zip([...entries(), { name: 'archive/../../x', content: floats(1) }]),
        /expected names within the archive, got archive\/\.\.\/\.\.\/x/,
      ));
    it('with a directory outside of the file', () =>
      refuses(zip(entries(), { directoryAt: 2 ** 31 }), /expected a directory before its end/));
    it('with an end that is missing', () =>
      refuses(zip(entries()).subarray(0, -8), /expected the directory of a zip archive, got none/));
  });
});
