// `policy-loss devices`: lists the CPU and the GPUs on which losses can be computed.
import type { Command } from 'commander';
import { type Device, devices } from '../../../index.js';
import { helpAfter } from '../help.js';
import { csv, type OutputOptions, print, table } from '../output.js';
import { OUTPUT_OPTIONS } from '../rollouts-command.js';

/** Adds the command `devices` to the command-line program. */
export function addDevices(program: Command): void {
  const command = program
    .command('devices')
    .summary('list the devices to compute on')
    .description('Lists the CPU and the usable GPUs, or the reason why there is no usable GPU.');
  for (const option of OUTPUT_OPTIONS()) command.addOption(option);
  command.addHelpText('after', helpAfter(['devices', 'devices --json']));
  command.action(async (options: OutputOptions) => {
    const all: readonly Device[] = devices();
    await print(options, {
      json: () => all,
      csv: () =>
        csv(
          ['name', 'available', 'description'],
          all.map((device) => [device.name, String(device.available), descriptionOf(device)]),
        ),
      text: () =>
        table(
          ['device', 'available', 'description'],
          all.map((device) => [
            device.name,
            device.available ? { text: 'yes', style: 'green' } : { text: 'no', style: 'yellow' },
            descriptionOf(device),
          ]),
        ),
    });
  });
}

function descriptionOf(device: Device): string {
  if (!device.available)
    return [device.description, device.reason.message].filter((text) => text !== undefined).join(': ');
  if ('isa' in device) return `${device.cores} cores, ${device.threads} threads, ${device.isa}`;
  const gib = device.memory / 2 ** 30;
  return `${device.description}, ${gib.toFixed(1)} GiB, compute capability ${device.computeCapability}`;
}
