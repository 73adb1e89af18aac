// Options of every Mocha run here. `jobs` counts only with --parallel, which runs test files side by side. It is one more
// than there are cores, because the suites of queues and servers mostly wait.
const { availableParallelism } = require('node:os');

module.exports = { import: ['tsx'], timeout: 60_000, jobs: availableParallelism() + 1 };
