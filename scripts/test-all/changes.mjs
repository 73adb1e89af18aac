// Finds the paths that changed recently. `npm run test:all -- --changed` uses them to choose its steps.
import { execFileSync } from 'node:child_process';

const HOURS = 24;

/**
 * Returns the paths that differ from the base commit, including uncommitted ones. Returns undefined if there is no base
 * commit or no difference. The base is CI_BASE if it is set; otherwise the newest ancestor of HEAD that is a day older
 * than HEAD.
 *
 * @param {string} repository its root folder
 * @param {string | undefined} ciBase a commit, for example the merge base of a pull request
 */
export function changedPaths(repository, ciBase = process.env.CI_BASE) {
  const git = (...args) =>
    execFileSync('git', args, { cwd: repository, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  const lines = (text) => text.split('\n').filter(Boolean);
  try {
    const base = ciBase || commitBefore(git);
    if (!base) return undefined;
    const tracked = lines(git('diff', '--name-only', '--no-renames', base, '--'));
    const untracked = lines(git('ls-files', '--others', '--exclude-standard'));
    const changed = [...tracked, ...untracked];
    return changed.length > 0 ? changed : undefined;
  } catch {
    return undefined; // not a repository, or it does not have that commit
  }
}

function commitBefore(git) {
  const seconds = Number(git('log', '-1', '--format=%ct', 'HEAD')) - HOURS * 3600;
  return git('log', '-1', '--format=%H', `--until=${seconds}`, 'HEAD').trim();
}
