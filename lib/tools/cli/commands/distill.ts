// `policy-loss distill`: computes a loss from tensors of logits, of which a teacher's may come from another file.
import { type Command, Option } from 'commander';
import { cudaIndex } from '../../../device/device.js';
import { LOGITS_LOSS_FN, LossError, type Metrics } from '../../../index.js';
import { BATCH_BYTES, LOGITS_FILE_INPUTS, logitsLossOfFiles } from '../../parts/index.js';
import { formatOf, unknownFormat } from '../../rollouts/file-name.js';
import { splitTensorName } from '../../rollouts/tensor/named.js';
import { type ColumnsWriter, columnsWriter } from '../../rollouts/write/columns.js';
import { flagOf, optionValue } from '../flags.js';
import { helpAfter } from '../help.js';
import { parseCount } from '../numbers.js';
import { csv, type OutputOptions, ProgressBar, print, twoColumns, type Value } from '../output.js';
import { refuseInputs } from '../output-file.js';
import { DEVICE_OPTION, OUTPUT_OPTIONS } from '../rollouts-command.js';
import { typedSubject } from '../typed-subjects.js';
import { asksForHelp, valuesOf, wordsOf } from '../words.js';

/** The result of `policy-loss distill`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface LogitsEvaluation {
  /** The name of the loss. */
  name: string;
  loss: number;
  metrics: Partial<Metrics>;
  rows: number;
  /** The number of tokens that the loss does not leave out. */
  tokens: number;
  vocabulary: number;
  /** The number of parts in which the rows were computed; absent if there was only one part. */
  batches?: number;
  /** The file with the gradient, and its size in bytes; absent without --grad-out. */
  file?: string;
  bytes?: number;
}

interface DistillOptions extends OutputOptions {
  batchBytes: number;
  gradOut?: string;
  device: string;
  quiet?: boolean;
}

/**
 * Adds the command `distill` to the command-line program.
 * @param words the arguments of the command line. They name a loss, and the command gets its options.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss or option, or no loss.
 */
export function addDistill(program: Command, words: readonly string[]): readonly string[] {
  const command = program
    .command('distill')
    .summary('compute a loss of logits on files of logits')
    .description(
      'Computes a loss of distillation, or another loss of logits, from tensors of the student and the teacher. These are ' +
        'read a number of rows at a time, and need not fit into memory. Prints the loss and its metrics.',
    );
  const inputs = LOGITS_FILE_INPUTS.map(({ name, help }) => ({
    name,
    option: new Option(`${flagOf(name)} <file[:name]>`, help),
  }));
  for (const option of [
    new Option('--loss <name>', `a loss of logits: ${LOGITS_LOSS_FN.names().join(', ')}`),
    ...inputs.map(({ option }) => option),
    new Option(
      '--batch-bytes <number>',
      'the largest number of bytes of logits in a part, which has at least one row; the next part is read while one is computed',
    )
      .default(BATCH_BYTES)
      .argParser(parseCount),
    new Option(
      '--grad-out <file>',
      'write the gradient with respect to the logits, in float32 (.safetensors)',
    ),
    DEVICE_OPTION(),
    ...OUTPUT_OPTIONS(),
  ])
    command.addOption(option);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  if (words[0] !== command.name()) return words;
  checkLoss(words);
  const { typed, left } = typedSubject(command, words);
  for (const option of typed?.options ?? []) command.addOption(option);
  command.action(async (options: DistillOptions) => {
    const { name, options: own, typed: given } = typed!;
    const loss = LOGITS_LOSS_FN.create(name, valuesOf(wordsOf(given), own, command));
    const { batchBytes, device, gradOut, quiet = false } = options;
    // Throws an error for an unknown device before any file is read.
    cudaIndex(device);
    const values: Record<string, unknown> = { ...options };
    const tensors = Object.fromEntries(
      inputs.map((input) => [input.name, values[input.option.attributeName()] as string | undefined]),
    );
    checkGradientFile(gradOut, tensors);
    const progress = new ProgressBar(quiet);
    let writer: ColumnsWriter | undefined;
    try {
      const settings = { loss, name, tensors, batchBytes, device, progress };
      const { parts, ...computed } = await logitsLossOfFiles(
        settings,
        gradOut === undefined
          ? undefined
          : (gradient) => {
              const out = columnsWriter(gradOut, { [gradient.name]: 'F32' }, gradient.shape);
              writer = out;
              return (values) => out.add({ [gradient.name]: values });
            },
      );
      const bytes = await writer?.close();
      progress.stop();
      const result: LogitsEvaluation = {
        name,
        ...computed,
        ...(parts > 1 && { batches: parts }),
        ...(gradOut !== undefined && { file: gradOut, bytes: bytes! }),
      };
      const { metrics, ...rest } = result;
      await print(options, {
        json: () => result,
        csv: () => {
          const cells: Record<string, Value> = { ...rest, ...metrics, loss: result.loss };
          return csv(Object.keys(cells), [Object.values(cells)]);
        },
        text: () => describe(result),
      });
    } finally {
      progress.stop();
      await writer?.abort();
    }
  });
  return left;
}

/** Checks that the loss is one of logits, before its options are read. */
function checkLoss(words: readonly string[]): void {
  const name = optionValue('--loss', words);
  if (name !== undefined) LOGITS_LOSS_FN.get(name);
  else if (!asksForHelp(words))
    throw new LossError('ERR_INVALID_OPTION', {
      expected: '--loss <name>',
      received: 'none',
      hint: "'policy-loss distill --help' shows examples",
    });
}

// Lines of JSON have lists of at most two dimensions.
const FORMATS = [{ endings: ['.safetensors'] }];

function checkGradientFile(
  file: string | undefined,
  tensors: Readonly<Record<string, string | undefined>>,
): void {
  if (file === undefined) return;
  if (!formatOf(FORMATS, file)) throw unknownFormat('ERR_INVALID_OPTION', file, FORMATS);
  const read = Object.values(tensors).filter((tensor) => tensor !== undefined);
  refuseInputs(
    [['--grad-out', file]],
    read.map((tensor) => splitTensorName(tensor).file),
  );
}

const HELP = `\
Options of a loss are written in kebab case: num_items_in_batch is --num-items-in-batch. To list them with their
defaults, add --help to --loss NAME. 'policy-loss list NAME' says which inputs a loss reads.

A tensor is in a .safetensors, .npz or .npy file, and is named after a colon. Without a name, it is the only tensor of its
file, or the one that is called as the option is, with underscores. Logits are float32, float16 or bfloat16, each from
which the token at its position was chosen. Larger tensors than --batch-bytes are computed in parts, with the same loss and
gradient; metrics that need the whole batch are left out. A loss that reduces over all rows needs them in one part: raise
--batch-bytes if the message says so.`;

const EXAMPLES = [
  'distill --loss trl/gkd --logits student.safetensors --teacher-logits teacher.npy --action-mask mask.npy --beta 0.5',
  'distill --loss openrlhf/kd --logits step7.safetensors --teacher-logits step7.safetensors --targets step7.safetensors',
  'distill --loss tinker/sdft --logits student.npz --teacher-topk-ids topk.npz --teacher-topk-logprobs topk.npz --json',
  'distill --loss trl/gkd --logits student.npy --teacher-logits teacher.npy --grad-out gradient.safetensors',
];

function describe(result: LogitsEvaluation): string {
  const { name, loss, metrics, rows, tokens, vocabulary, batches, file, bytes } = result;
  const counts = { rows, tokens, vocabulary, batches, bytes };
  return twoColumns([
    ['function', name],
    ...Object.entries({ loss, ...metrics }),
    ...Object.entries(counts).flatMap(([what, count]) =>
      count === undefined ? [] : [[what, String(count)] as const],
    ),
    ...(file === undefined ? [] : [['file', file] as const]),
  ]);
}
