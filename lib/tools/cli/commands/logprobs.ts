// `policy-loss logprobs`: computes log-probabilities from a tensor of logits that need not fit into memory.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { type LogprobsLayout, logprobsOfFile } from '../../parts/index.js';
import { splitTensorName } from '../../rollouts/tensor/named.js';
import {
  type Columns,
  type ColumnsWriter,
  checkColumnsFormat,
  columnsWriter,
} from '../../rollouts/write/columns.js';
import { helpAfter } from '../help.js';
import { csv, type OutputOptions, ProgressBar, print, twoColumns } from '../output.js';
import { refuseInputs } from '../output-file.js';
import { OUTPUT_OPTIONS } from '../rollouts-command.js';

/** The result of `policy-loss logprobs`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface WrittenLogprobs {
  file: string;
  /** The shape of each column: that of the logits without the vocabulary. */
  shape: readonly number[];
  vocabulary: number;
  /** The number of rows of logits whose target is not −100. */
  tokens: number;
  /** The mean over these rows. */
  meanLogprob: number;
  /** The mean over these rows; absent without --entropy. */
  meanEntropy?: number;
  /** The size of the written file in bytes. */
  bytes: number;
}

interface LogprobsOptions extends OutputOptions {
  logits: string;
  targets: string;
  temperature?: number | string;
  softcap?: number;
  entropy?: boolean;
  out: string;
  quiet?: boolean;
}

/** Adds the command `logprobs` to the command-line program. */
export function addLogprobs(program: Command): void {
  const command = program
    .command('logprobs')
    .summary('log-probabilities from a file of logits')
    .description(
      'Computes the log-probability of each target from a tensor of logits, which is read in blocks and need not fit ' +
        'into memory.',
    );
  for (const option of [
    new Option(
      '--logits <file[:name]>',
      'logits [N, V] or [B, T, V] of float32, float16 or bfloat16 (.safetensors, .npz, .npy)',
    ).makeOptionMandatory(),
    new Option(
      '--targets <file[:name]>',
      'the token ids, integers of shape [N] or [B, T]; -100 ignores a row',
    ).makeOptionMandatory(),
    new Option(
      '--temperature <number|file[:name]>',
      'divides the logits: a number, or a tensor with the shape of the targets',
    ).argParser((text) => (text.trim() === '' || Number.isNaN(Number(text)) ? text : Number(text))),
    new Option('--softcap <number>', 'limits each logit x to softcap·tanh(x/softcap)').argParser(parseNumber),
    new Option('--entropy', 'also write the entropies'),
    new Option('-o, --out <file>', 'the file to write: .safetensors or .jsonl').makeOptionMandatory(),
    ...OUTPUT_OPTIONS(),
  ])
    command.addOption(option);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  command.action(async (options: LogprobsOptions) => {
    const { logits, targets, temperature, softcap, entropy = false, out, quiet = false } = options;
    checkColumnsFormat(out);
    const inputs = [logits, targets, ...(typeof temperature === 'string' ? [temperature] : [])];
    refuseInputs(
      [['--out', out]],
      inputs.map((input) => splitTensorName(input).file),
    );
    const progress = new ProgressBar(quiet);
    let writer: ColumnsWriter | undefined;
    let layout: LogprobsLayout | undefined;
    try {
      const given = { logits, targets, temperature, softcap, entropy, progress };
      const sums = await logprobsOfFile(given, (found) => {
        layout = found;
        const columns: Columns = {
          logsumexp: 'F64',
          logprobs: 'F32',
          ...(entropy && { entropy: 'F32' }),
          action_mask: 'U8',
        };
        const columnsOut = columnsWriter(out, columns, layout.shape);
        writer = columnsOut;
        return ({ logprob, logsumexp, entropy, mask }) =>
          columnsOut.add({ logsumexp, logprobs: logprob, ...(entropy && { entropy }), action_mask: mask });
      });
      const bytes = await writer!.close();
      progress.stop();
      const written: WrittenLogprobs = {
        file: out,
        ...layout!,
        tokens: sums.tokens,
        meanLogprob: sums.logprob,
        ...(sums.entropy !== undefined && { meanEntropy: sums.entropy }),
        bytes,
      };
      await print(options, {
        json: () => written,
        csv: () => csv(Object.keys(written), [Object.values({ ...written, shape: written.shape.join('x') })]),
        text: () => describe(written),
      });
    } finally {
      progress.stop();
      await writer?.abort();
    }
  });
}

function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || Number.isNaN(value)) throw new InvalidArgumentError('Expected a number.');
  return value;
}

const HELP = `\
A tensor is named after a colon. Without a name, it is the only tensor of its file, or the one called logits, targets or
temperature. The written file has the columns logprobs, logsumexp, entropy and action_mask (0 where a target is -100),
which have the shape of the targets. Files of rollouts use the same names.`;

const EXAMPLES = [
  'logprobs --logits step7.safetensors --targets step7.safetensors:targets --out logprobs.safetensors',
  'logprobs --logits logits.npz --targets tokens.npy --temperature 0.7 --entropy --out logprobs.jsonl',
];

function describe({
  file,
  shape,
  vocabulary,
  tokens,
  meanLogprob,
  meanEntropy,
  bytes,
}: WrittenLogprobs): string {
  return twoColumns([
    ['shape', shape.join(' × ')],
    ['vocabulary', String(vocabulary)],
    ['tokens', String(tokens)],
    ['mean log-probability', meanLogprob],
    ...(meanEntropy === undefined ? [] : [['mean entropy', meanEntropy] as const]),
    ['bytes', String(bytes)],
    ['file', file],
  ]);
}
