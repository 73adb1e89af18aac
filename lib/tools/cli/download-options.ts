// The options that limit what files on servers may take.
import { type Command, Option } from 'commander';
import { DOWNLOADS } from '../rollouts/remote/remote.js';
import { parseCount, parseSeconds } from './numbers.js';

const DEFAULTS = { maxDownload: DOWNLOADS.maxBytes, stallSeconds: DOWNLOADS.stallMs / 1000 };

/** Adds the options to a command, which apply to the whole process. */
export function addDownloadOptions(command: Command): Command {
  return command
    .addOption(
      new Option('--max-download <bytes>', 'the largest number of bytes to read of one file on a server')
        .default(DEFAULTS.maxDownload)
        .argParser(parseCount),
    )
    .addOption(
      new Option(
        '--stall-seconds <number>',
        'how long a server may take for an answer, and for each 64 KiB of it; the sixth failure in a row is the last',
      )
        .default(DEFAULTS.stallSeconds)
        .argParser(parseSeconds),
    )
    .hook('preAction', () => {
      const { maxDownload, stallSeconds } = command.opts<typeof DEFAULTS>();
      setDownloads({ maxBytes: maxDownload, stallMs: Math.ceil(1000 * stallSeconds) });
    });
}

/** The environment variable that tells the process of a shard the limits of its worker. */
const VARIABLE = 'POLICY_LOSS_DOWNLOADS';

/** Returns the environment of a process with the same limits. */
export function downloadsEnvironment(): NodeJS.ProcessEnv {
  return { [VARIABLE]: JSON.stringify(DOWNLOADS) };
}

/** Applies the limits of the process that started this one. */
export function inheritDownloads(): void {
  setDownloads(JSON.parse(process.env[VARIABLE] ?? '{}'));
}

function setDownloads(limits: Partial<typeof DOWNLOADS>): void {
  Object.assign(DOWNLOADS, limits);
}
