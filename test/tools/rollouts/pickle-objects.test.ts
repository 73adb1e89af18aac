/** Tests that ordinary Python objects are skipped where no loss reads them, and are errors where one does. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import { bytes, call, global, Opcodes, pickle, tensor, torchFile, tuple } from '../../support/pickle.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

/** Written by fixtures/objects/make.py. */
const fixture = (protocol: number) =>
  fileURLToPath(new URL(`fixtures/objects/protocol-${protocol}.pkl`, import.meta.url));
const OPTIONAL = { logprobs: 'optional' } as const;
const PYTHON = 'expected numbers or text, got a Python object';

describe('Python objects in pickles', () => {
  const folder = temporaryFolder();

  async function keptOf(file: string, keep: string[]): Promise<Readonly<Record<string, unknown>>> {
    for await (const { kept } of streamRollouts([file], { ...OPTIONAL, columns: [], keep })) return kept[0]!;
    return assert.fail('no part');
  }

  for (const protocol of [2, 3, 4, 5])
    describe(`of protocol ${protocol}`, () => {
      it('are skipped where nothing reads them', async () => {
        const columns = ['rollout_logprobs', 'reward'] as const;
        const { batch } = await readRollouts([fixture(protocol)], { ...OPTIONAL, columns });
        assert.deepEqual(batch.rewards, Float64Array.of(1));
        assert.deepEqual(batch.rolloutLogprob, Float32Array.of(-0.5, -1));
      });

      it('are absent from columns that are only kept', async () => {
        const keep = ['metadata', 'own_decimal', 'own_defaultdict', 'own_big', 'own_tuple_key'];
        const { metadata, ...own } = await keptOf(fixture(protocol), keep);
        assert.deepEqual(JSON.parse(JSON.stringify(own)), {
          own_defaultdict: { a: [1] },
          own_big: String(2n ** 100n),
          own_tuple_key: { 5: 6, a: 4 },
        });
        const { nested, dataclass, uuid } = metadata as Record<string, unknown>;
        assert.deepEqual(JSON.stringify([nested, dataclass, uuid]), '[[{"a":[null,{"b":[3]}]}],null,null]');
      });

      it('are errors in columns that are read, which name the column and the class', async () => {
        const read = (...columns: ('task_id' | 'advantages')[]) =>
          readRollouts([fixture(protocol)], { ...OPTIONAL, columns });
        const refused = (message: RegExp) => isLossError('ERR_INVALID_INPUT', message);
        await assert.rejects(read('task_id'), refused(new RegExp(`row 1: task_id: ${PYTHON}, uuid\\.UUID$`)));
        await assert.rejects(
          read('advantages'),
          refused(new RegExp(`row 1: advantages: ${PYTHON}, decimal\\.Decimal$`)),
        );
      });
    });

  const dtype = (name: string) => {
    const state = new Opcodes(tuple(4, '<', null, null, null, -1, -1, 0).bytes, 'b');
    return new Opcodes(call(global('numpy', 'dtype'), name, false, true).bytes, state.bytes);
  };

  it('are scalars and arrays of NumPy whose elements are no numbers', async () => {
    for (const [name, size] of [
      ['M8', 8],
      ['c16', 16],
      ['S5', 5],
      ['V8', 8],
      ['f16', 16],
    ] as const) {
      const scalar = call(global('numpy.core.multiarray', 'scalar'), dtype(name), bytes(Buffer.alloc(size)));
      const array = call(
        global('numpy._core.numeric', '_frombuffer'),
        bytes(Buffer.alloc(2 * size)),
        dtype(name),
        tuple(2),
        'C',
      );
      for (const value of [scalar, array]) {
        const row = { tokens: [1], response_length: 1, loss_mask: [1], metadata: [value], advantages: value };
        const file = folder.write('numpy.pkl', pickle({ samples: [row] }));
        const { rows } = await readRollouts([file], { ...OPTIONAL, columns: [] });
        assert.equal(rows, 1);
        await assert.rejects(
          readRollouts([file], { ...OPTIONAL, columns: ['advantages'] }),
          isLossError(
            'ERR_INVALID_INPUT',
            new RegExp(`row 1: advantages: ${PYTHON}, numpy\\.dtype ${name}$`),
          ),
        );
      }
    }
  });

  it('are named in batches of tensors, where they are columns', async () => {
    const dump = {
      log_probs: tensor('0', 2, [1, 2]),
      advantages: call(global('mine', 'Lazy'), 1),
      old_log_probs: tensor('1', 2, [1, 2], { type: 'ComplexFloat' }),
    };
    const file = folder.write('batch.pt', torchFile(dump, { 0: Buffer.alloc(8), 1: Buffer.alloc(16) }));
    const read = (columns: ('advantages' | 'old_logprobs')[]) => readRollouts([file], { columns });
    assert.equal((await read([])).tokens, 2);
    await assert.rejects(
      read(['advantages']),
      isLossError('ERR_INVALID_INPUT', new RegExp(`row 1: advantages: ${PYTHON}, mine\\.Lazy$`)),
    );
    await assert.rejects(
      read(['old_logprobs']),
      isLossError(
        'ERR_INVALID_INPUT',
        new RegExp(`row 1: old_logprobs: ${PYTHON}, torch\\.ComplexFloatStorage$`),
      ),
    );
  });

  it('are no rollouts by themselves', () =>
    assert.rejects(
      readRollouts([folder.write('frame.pkl', pickle(call(global('pandas', 'DataFrame'), 1)))]),
      isLossError('ERR_INVALID_INPUT', /got an object of class pandas\.DataFrame$/),
    ));
});
