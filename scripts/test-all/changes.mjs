// Finds the paths that changed recently. `npm run test:all -- --changed` uses them to choose its steps.
import { execFileSync } from 'node:child_process';

const HOURS = 24;

/**
 * Returns the paths of files that differ between a base commit and the working folder, including untracked files. The
 * base is `ciBase` if it is given. Otherwise it is the newest ancestor of HEAD that is at least a day older than HEAD.
 * Returns undefined if there is no base commit or no difference.
 *
 * @param {string} repository the repository's root folder
 * @param {string | undefined} ciBase a commit, for example the merge base of a pull request; the default is the
 *   environment variable CI_BASE
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
