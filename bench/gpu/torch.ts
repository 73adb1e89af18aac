// Starts PyTorch on the device under test. Its eager and its compiled form are peers.
import type { CudaDevice } from '../../lib/index.js';
import type { Work } from '../lib/works.js';
import { describePeer } from '../peers/peer.js';
import { type TorchPeer, TorchSession } from '../peers/torch.js';
import { DEVICE, isEmulated } from './device.js';

/** A session with the forms of PyTorch that can be timed. */
export interface Torch {
  session: TorchSession;
  peers: TorchPeer[];
}

/** Starts PyTorch, on the CPU if the device is emulated, and prints what will be timed. */
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
