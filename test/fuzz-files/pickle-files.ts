/** Makes pickles and torch files of random objects: those that readers know, and what a small hostile file would have. */

import { sizeOfShape } from '../../lib/tools/rollouts/tensor/tensor.js';
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
  unsigned,
  zip,
} from '../support/pickle.js';
import { generator } from '../support/random.js';

type Random = ReturnType<typeof generator>;

const KNOWN = [
  ['torch.storage', '_load_from_bytes'],
  ['torch._utils', '_rebuild_tensor_v2'],
  ['torch._utils', '_rebuild_parameter'],
  ['tensordict._reductions', '_make_td'],
  ['tensordict._reductions', '_rebuild_tensordict_files_consolidated'],
  ['tensordict._td', 'TensorDict'],
  ['_codecs', 'encode'],
  ['_io', 'BytesIO'],
  ['numpy', 'dtype'],
  ['numpy.core.multiarray', 'scalar'],
  ['numpy.core.multiarray', '_reconstruct'],
  ['numpy._core.numeric', '_frombuffer'],
  ['skyrl_train.training_batch', '_rebuild_tensor_batch'],
  ['skyrl_train.training_batch', 'TrainingInputBatch'],
  ['verl.protocol', 'DataProto'],
  ['trinity.common.experience', 'Experience'],
  ['trinity.common.experience', 'EID'],
  ['torch', 'Size'],
  ['torch', 'float32'],
  ['torch', 'BFloat16Storage'],
  ['collections', 'OrderedDict'],
  ['builtins', 'set'],
] as const;
const UNKNOWN = [
  ['datetime', 'datetime'],
  ['mine', 'Outer.Inner'],
  ['torch', 'ComplexFloatStorage'],
  ['__proto__', 'constructor'],
] as const;
const DTYPES = [
  ['f4', 4],
  ['f8', 8],
  ['i8', 8],
  ['b1', 1],
  ['U1', 4],
  ['U36', 144],
  ['U65536', 1 << 18],
  ['M8', 8],
  ['x', 8],
] as const;
const COLUMNS = [
  'tokens',
  'loss_mask',
  'rollout_log_probs',
  'log_probs',
  'old_log_probs',
  'response_mask',
  'responses',
  'attention_mask',
  'advantages',
  'token_level_scores',
  'uid',
  'metadata',
  'reward',
];
const NEW_OBJECT = Buffer.from([0x29, 0x81]);
/** The sizes of the storages of a torch file, in bytes. Zeros are good values of all types. */
const STORAGES = [0, 1, 16, 4096, 1 << 18, 1 << 22];
/** The number of them in a file inside of another one. */
const INNER_STORAGES = 4;

const MAX_DEPTH = 3;

/** The number of values that a file memoizes first, so that all others can use them again and again. */
const SHARED = 6;

/** Makes values as opcodes. */
class Values {
  readonly #random: Random;
  readonly #isTorch: boolean;
  readonly #level: number;
  #memo = SHARED;
  /** The number of values that may still be made. Further ones are shared. */
  #left: number;

  /**
   * @param isTorch whether the file has the storages of tensors.
   * @param level the number of files that hold it.
   */
  constructor(random: Random, isTorch: boolean, level = 0) {
    this.#random = random;
    this.#isTorch = isTorch;
    this.#level = level;
    this.#left = level === 0 ? 200 : 20;
  }

  /** The values to share, and the value at the top. */
  file(): Opcodes {
    const shared = Array.from({ length: SHARED }, (_, i) => [this.value(2, false).bytes, 'q', i, '0']).flat();
    return new Opcodes(...shared, this.top().bytes);
  }

  #pick<T>(choices: readonly T[]): T {
    return choices[this.#random.integer(0, choices.length - 1)]!;
  }

  /** A count that is mostly small. */
  #count(most: number): number {
    return this.#random.integer(0, this.#pick([2, 5, 20, most]));
  }

  #many(count: number, depth: number): Opcodes[] {
    return Array.from({ length: count }, () => this.value(depth));
  }

  #recalled(): Opcodes {
    return new Opcodes('h', this.#random.integer(0, SHARED - 1));
  }

  /** @param canRecall whether the shared values are there. */
  value(depth: number, canRecall = true): Opcodes {
    if (--this.#left < 0 && canRecall) return this.#recalled();
    // What is seldom good would spoil all files if it was frequent.
    if (this.#random.integer(0, 120) === 0) return this.#pick([this.#call, this.#odd]).call(this, depth);
    const flat = [
      () => new Opcodes(pickled(this.#pick([0, 1, -1, 0.5, 2 ** 31, 1e300, true, false, null]))),
      () => text('x'.repeat(this.#count(100_000))),
      () => bytes(Buffer.alloc(this.#count(1 << 20))),
      () => new Opcodes(']', '(', Buffer.alloc(2 * this.#count(20_000), 'K\x01'), 'e'),
      () => (canRecall ? this.#recalled() : text('shared')),
      () => tuple(...Array.from({ length: this.#count(70) }, () => this.#random.integer(-1, 5))),
    ];
    const nested = [
      () => tuple(...this.#many(this.#count(5), depth + 1)),
      () => new Opcodes('](', ...this.#many(this.#count(20), depth + 1).map((one) => one.bytes), 'e'),
      () => this.#dict(depth),
      () => this.#dict(depth),
      () => this.#repeated(depth),
      () => this.#doubling(),
      () => this.#object(depth),
      () => this.#array(depth),
      () => this.tensor(),
      () => call(global('torch.storage', '_load_from_bytes'), this.#torch()),
    ];
    return this.#pick(depth > MAX_DEPTH || !canRecall ? flat : [...flat, ...nested])();
  }

  /** The bytes of a torch file. */
  #torch(): Opcodes {
    return this.#level < 3 ? bytes(torch(this.#random, this.#level + 1)) : text('x');
  }

  #odd(): Opcodes {
    return new Opcodes(this.#random.integer(0, 255), this.#random.integer(0, 255));
  }

  #dict(depth: number): Opcodes {
    const items = Array.from({ length: this.#count(20) }, () => {
      const key = this.#random.integer(0, 5) > 0 ? text(this.#pick(COLUMNS)) : this.value(depth + 1);
      return [key.bytes, this.value(depth + 1).bytes];
    });
    return new Opcodes('}(', ...items.flat(), 'u');
  }

  /** The same opcodes many times, in a list. They may make a value of an earlier one each time. */
  #repeated(depth: number): Opcodes {
    const once = this.#pick([
      () => this.#recalled(),
      () => call(this.#global(KNOWN), this.#recalled(), this.#pick(['latin1', this.#recalled()])),
      () => this.#array(5),
      () => this.tensor(),
      () => this.value(depth + 3),
    ])();
    const times = Math.min(this.#count(50_000), Math.floor((1 << 20) / (1 + once.bytes.length)));
    const all = Buffer.alloc(times * (once.bytes.length + 1), Buffer.concat([once.bytes, Buffer.from('a')]));
    return new Opcodes(']', all);
  }

  #doubling(): Opcodes {
    const pieces = [this.value(5).bytes];
    for (let i = this.#count(40); i > 0; i--) {
      const at = unsigned(this.#memo++, 4);
      pieces.push(Buffer.from('r'), at, Buffer.from('j'), at, Buffer.from([0x86]));
    }
    return new Opcodes(...pieces);
  }

  #call(depth: number): Opcodes {
    return call(this.#global(KNOWN), ...this.#many(this.#count(5), depth + 1));
  }

  #global(names: readonly (readonly [string, string])[]): Opcodes {
    const [module, name] = this.#pick(names);
    return global(module, name);
  }

  #object(depth: number): Opcodes {
    const type = this.#global(UNKNOWN).bytes;
    const state = this.value(depth + 1).bytes;
    return new Opcodes(type, this.#pick([NEW_OBJECT, ')R']), state, this.#pick(['b', 'b', 'b', 'a', '0']));
  }

  #array(depth: number): Opcodes {
    const [name, size] = this.#pick(DTYPES);
    const dtype = call(global('numpy', 'dtype'), name, false, true);
    const rows = Math.min(this.#count(100_000), Math.floor((1 << 20) / size));
    const isGood = this.#random.integer(0, 20) > 0;
    const data = isGood ? bytes(Buffer.alloc(rows * size)) : this.value(depth + 1);
    return call(
      global('numpy._core.numeric', '_frombuffer'),
      data,
      dtype,
      isGood ? this.#pick([tuple(rows), tuple(rows, 1), tuple(1, rows)]) : this.#recalled(),
      this.#pick(['C', 'F']),
    );
  }

  /** A tensor of one of the storages. It is a good one if its file has them, and its numbers fit. */
  tensor(): Opcodes {
    if (!this.#isTorch) return this.#array(MAX_DEPTH);
    const key = this.#random.integer(0, (this.#level > 0 ? INNER_STORAGES : STORAGES.length) - 1);
    const [type, size] = this.#pick([
      ['Float', 4],
      ['Float', 4],
      ['BFloat16', 2],
      ['Long', 8],
      ['Bool', 1],
      ['ComplexFloat', 8],
    ] as const);
    const count = Math.max(0, Math.floor(STORAGES[key]! / size) - this.#random.integer(0, 1));
    const shape = this.#pick([
      [count],
      [1, count],
      [count, 1],
      [4, Math.floor(count / 4)],
      [Math.floor(count / 2), 2],
    ]);
    if (this.#random.integer(0, 3) === 0)
      shape.splice(0, 2, this.#count(2 ** 20), this.#pick([1, this.#count(2 ** 20)]));
    const strides =
      sizeOfShape(shape) > count ? [0, 0] : this.#pick([undefined, [0, 0], [1, 0], [0, 1], [1, shape[0]!]]);
    return tensor(String(key), count, shape, {
      type,
      ...(strides && { strides: strides.slice(0, shape.length) }),
    });
  }

  /** What a trainer's file has at the top, with some columns that fit. */
  top(): Opcodes {
    const row = () => {
      const length = this.#count(30);
      const own = {
        tokens: new Array(length + 1).fill(1),
        response_length: length,
        loss_mask: new Array(length).fill(1),
      };
      const more = Array.from(
        { length: this.#count(3) },
        () => [this.#pick(['metadata', ...COLUMNS.slice(0, this.#count(3))]), this.value(1)] as const,
      );
      return new Map<string, unknown>([...Object.entries(own), ...more]);
    };
    switch (this.#random.integer(0, 5)) {
      case 0:
        return this.value(0);
      case 1: {
        const at = this.#memo++;
        const first = new Opcodes(pickled(row()), 'r', unsigned(at, 4));
        const again = Buffer.concat([Buffer.from('aj'), unsigned(at, 4)]);
        const rows = new Opcodes(']', first.bytes, Buffer.alloc(6 * this.#count(100_000), again), 'a');
        return new Opcodes(pickled({ rollout_id: 1, samples: rows }));
      }
      case 2: {
        const lists = new Map(COLUMNS.map((name) => [name, this.value(2)]));
        return new Opcodes(
          pickled({ rollout_data: new Map<string, unknown>([['response_lengths', [1, 1]], ...lists]) }),
        );
      }
      case 3: {
        const columns = COLUMNS.filter(() => this.#random.integer(0, 1) > 0);
        return new Opcodes(pickled(new Map(columns.map((name) => [name, this.tensor()]))));
      }
      case 4: {
        const state = { batch_dict: this.#dict(1), metadata: this.#dict(1), batch_size: 1 };
        const type = global('skyrl_train.training_batch', 'TrainingInputBatch');
        return call(global('skyrl_train.training_batch', '_rebuild_tensor_batch'), type, state);
      }
      default: {
        const batch = this.#pick([this.#torch(), this.#dict(1)]);
        const state = tuple(batch, this.#dict(1), {});
        return new Opcodes(global('verl.protocol', 'DataProto').bytes, NEW_OBJECT, state.bytes, 'b');
      }
    }
  }
}

const pickled = (value: unknown) => pickle(value).subarray(2, -1);

/** A torch file whose tensors have the storages of {@link STORAGES}. */
function torch(random: Random, level = 0): Buffer {
  const storages = Object.fromEntries(
    STORAGES.slice(0, level > 0 ? INNER_STORAGES : undefined).map((size, key) => [key, Buffer.alloc(size)]),
  );
  const value = new Values(random, true, level).file();
  if (random.integer(0, 30) > 0) return torchFile(value, storages);
  return zip([{ name: 'a/data.pkl', content: pickle(value), sizes: [random.integer(0, 2 ** 31), 1] }]);
}

/** Returns a random file and its ending. */
export function pickleFile(seed: number): { ending: string; file: Buffer } {
  const random = generator(seed);
  const file = random.integer(0, 2) === 0 ? torch(random) : pickle(new Values(random, false).file());
  return { ending: '.pkl', file };
}
