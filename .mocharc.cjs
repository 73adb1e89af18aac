// Options of every Mocha run here. `timeout` ends a test that hangs; no test depends on how fast the machine is. `jobs` counts only with --parallel, which runs test files side by side. It is one more
// than there are cores, because the suites of queues and servers mostly wait.
const { availableParallelism } = require('node:os');

module.exports = { import: ['tsx'], timeout: 900_000, jobs: availableParallelism() + 1 };
