// The files that pack-gpu.mjs copies unchanged. Their paths are relative to the repository's root.

/**
 * The native modules. The tests load the first, which is the one that users get, and the second, which plays a framework
 * in the same process. The benchmark loads the third, which is built for it.
 */
export const ADDONS = [
  'build/Release/policy_loss.node',
  'build/framework/framework.node',
  'build/bench/Release/policy_loss.node',
];

export const COPIED = [
  'LICENSE',
  'bench/peers/torch_batch.py',
  'bench/peers/torch_functions.py',
  'bench/peers/torch_losses.py',
  'bench/peers/torch_other_losses.py',
  'bench/peers/torch_peer.py',
  'bench/peers/torch_trl.py',
  'bench/peers/torch_verl.py',
  'scripts/gpu/run.sh',
  'test/golden',
];
