// The files that pack-gpu.mjs copies unchanged, as paths from the repository's root.

/** The native modules: the shipped one for the tests, and the bench build for the benchmark. */
export const ADDONS = ['build/Release/policy_loss.node', 'build/bench/Release/policy_loss.node'];

export const COPIED = [
  'LICENSE',
  'bench/peers/torch_losses.py',
  'bench/peers/torch_peer.py',
  'scripts/gpu/run.sh',
  'test/golden',
];
