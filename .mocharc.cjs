// Options of every Mocha run here. `jobs` counts only with --parallel, which runs test files side by side.
const { availableParallelism } = require('node:os');

module.exports = { import: ['tsx'], timeout: 60_000, jobs: availableParallelism() };
