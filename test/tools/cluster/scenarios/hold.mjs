// Node loads this file before a worker and its processes. When a process is about to give the part HOLD its name, it
// tells so by a file "held <worker>", and waits until there is a file "go <worker>". This happens once per worker.
import { existsSync, writeFileSync } from 'node:fs';
import promises from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const { HOLD, HOLD_FOLDER, HOLD_NAME } = process.env;
const told = (what) => join(HOLD_FOLDER, `${what} ${HOLD_NAME}`);
const { rename } = promises;
promises.rename = async (from, to) => {
  const holds = new RegExp(HOLD).test(basename(to)) && !existsSync(told('held'));
  if (holds) {
    writeFileSync(told('held'), basename(to));
    while (!existsSync(told('go'))) await sleep(20);
  }
  await rename(from, to).finally(() => holds && writeFileSync(told('released'), ''));
};
syncBuiltinESMExports();
