// The files that pack-gpu.mjs copies as they are, as paths from the repository's root.

/** The native modules: one for the tests, and one for the benchmark, which also calls functions that are not shipped. */
export const ADDONS = ['build/Release/policy_loss.node', 'build/bench/Release/policy_loss.node'];

export const COPIED = [
  'LICENSE',
  'bench/peers/torch_losses.py',
  'bench/peers/torch_peer.py',
  'scripts/gpu/run.sh',
  'test/golden',
];
