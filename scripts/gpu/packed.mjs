// The files that pack-gpu.mjs copies as they are, as paths from the repository's root.

/** The native module, which `npm run build:native` builds. */
export const ADDON = 'build/Release/policy_loss.node';

export const COPIED = [
  'LICENSE',
  'bench/peers/torch_losses.py',
  'bench/peers/torch_peer.py',
  'scripts/gpu/run.sh',
  'test/golden',
];
