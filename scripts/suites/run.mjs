// Runs compiled suites in this process: run.mjs FILE…. Mocha's own command starts itself again with flags that only Node
// has, or reads standard input, which not every runtime offers.
import Mocha from 'mocha';

const mocha = new Mocha({ reporter: 'dot', timeout: 600_000 });
for (const file of process.argv.slice(2)) mocha.addFile(file);
await mocha.loadFilesAsync();
mocha.run((failures) => {
  process.exitCode = failures > 0 ? 1 : 0;
});
