// Starts PyTorch on the device that is measured. Eager PyTorch and torch.compile are two separate peers.
import type { CudaDevice } from '../../lib/index.js';
import type { Work } from '../lib/works.js';
import { describePeer } from '../peers/peer.js';
import { type TorchPeer, TorchSession } from '../peers/torch.js';
import { DEVICE, isEmulated } from './device.js';

/** A session of PyTorch, and the forms of PyTorch (eager and compiled) that can be timed in it. */
export interface Torch {
  session: TorchSession;
  peers: TorchPeer[];
}

/**
 * Starts PyTorch and prints which of its forms will be timed. If the device is emulated, PyTorch runs on the CPU.
 * Returns undefined if no python3 has a torch that can use the device.
 */
export async function startTorch(
  device: CudaDevice,
  list: readonly Work[],
  options: { python: string | undefined; compile: boolean },
): Promise<Torch | undefined> {
  const session = await TorchSession.start({
    device: isEmulated(device) ? 'cpu' : `cuda:${DEVICE}`,
    python: options.python,
    until: 'device',
  });
  if (!session) {
    console.log('PyTorch: absent: found no python3 with a torch that can use the device');
    return undefined;
  }
  const peers = [session.peer('eager')];
  console.log(`PyTorch: ${describePeer(peers[0]!, list)}`);
  const problem = options.compile ? await session.compileProblem() : '--no-compile';
  if (problem === undefined) peers.push(session.peer('compiled'));
  else console.log(`torch.compile: not measured: ${problem}`);
  return { session, peers };
}
