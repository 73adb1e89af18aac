/** Tests a queue whose server accepts only TLS: with its certificate authority, and what is wrong otherwise. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { assertFailed, EXAMPLE, run } from '../cli/support.js';
import { Cluster, makeAuthority, needsRedis, Program, USER, withoutBatches } from './support.js';

const PASSWORD = 'hunter2/secret';

describe('queue with TLS', () => {
  let cluster: Cluster;
  before(async function () {
    needsRedis(this);
    if (spawnSync('openssl', ['version']).status !== 0) this.skip();
    cluster = await Cluster.start(PASSWORD, true);
  });
  after(() => cluster?.end());

  const words = ['evaluate', EXAMPLE, '--loss', 'ppo', '--json'];

  it('computes a run if NODE_EXTRA_CA_CERTS has the authority, as docs/clusters.md says', async () => {
    assert.match(cluster.url, /^rediss:\/\/trainer:hunter2%2Fsecret@localhost:\d+$/);
    const worker = await cluster.worker();
    const { code, stdout, stderr } = await cluster.run(...words, '--shard-size', '60K').end();
    assert.equal(code, 0, stderr);
    assert.deepEqual(withoutBatches(stdout), withoutBatches((await run(...words)).stdout));
    worker.signal('SIGTERM');
    assert.equal((await worker.end()).code, 0);
    assert.doesNotMatch(stdout + stderr + worker.stdout + worker.stderr, /hunter2/);
  });

  /** Asserts that a worker and a submitter fail, and show the host but not the password. */
  const assertRefused = async (url: string, authority: string | undefined, says: RegExp) => {
    const environment = {
      POLICY_LOSS_QUEUE: url,
      ...(authority !== undefined && { NODE_EXTRA_CA_CERTS: authority }),
    };
    const programs = [['worker'], words].map(
      (command) => new Program([...command, '--queue', 'env', '--parts', cluster.parts], environment),
    );
    for (const ended of await Promise.all(programs.map((program) => program.end()))) {
      assertFailed(
        ended,
        1,
        /the queue (localhost|127\.0\.0\.1):\d+: expected a Redis server that answers, got /,
      );
      assert.match(ended.stderr, says);
      assert.doesNotMatch(ended.stdout + ended.stderr, /hunter2|swordfish/);
    }
  };

  it('is an error without the authority, and with another one', async () => {
    await assertRefused(
      cluster.url,
      undefined,
      /self-signed certificate in certificate chain|unable to verify/,
    );
    const other = makeAuthority(cluster.folder, 'other');
    await assertRefused(cluster.url, other, /certificate/);
  });

  it('is an error for a host that the certificate does not name', async () => {
    const url = cluster.url.replace('localhost', '127.0.0.1');
    await assertRefused(url, cluster.authority, /127\.0\.0\.1 is not in the cert/);
  });

  it('is an error without TLS, and with a wrong password', async () => {
    await assertRefused(cluster.url.replace('rediss:', 'redis:'), cluster.authority, /got an error/);
    const wrong = cluster.url.replace(`${USER}:${encodeURIComponent(PASSWORD)}`, `${USER}:swordfish`);
    await assertRefused(wrong, cluster.authority, /WRONGPASS/);
  });
});
