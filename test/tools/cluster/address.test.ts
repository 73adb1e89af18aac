/** Tests the URLs of queues, the options of a queue, and what happens without the packages of the queue. */
import assert from 'node:assert/strict';
import { LossError } from '../../../lib/index.js';
import { readAddress } from '../../../lib/tools/cluster/address.js';
import { peer } from '../../../lib/tools/cluster/peers.js';
import { EXAMPLE, fails } from '../cli/support.js';

describe('address of a queue', () => {
  const parts = (url: string) => {
    const { connection, shown } = readAddress(url);
    const { retryStrategy, maxRetriesPerRequest, ...rest } = connection;
    assert.equal(maxRetriesPerRequest, null);
    assert.deepEqual([1, 2, 30].map(retryStrategy), [100, 200, 5000]);
    return { ...rest, shown };
  };

  it('has a host, a port, a database and credentials', () => {
    assert.deepEqual(parts('redis://host'), { host: 'host', port: 6379, db: 0, shown: 'host:6379' });
    assert.deepEqual(parts('redis://me:p%40ss%2F@10.0.0.7:7000/12'), {
      ...{ host: '10.0.0.7', port: 7000, db: 12, username: 'me', password: 'p@ss/' },
      shown: '10.0.0.7:7000/12',
    });
    assert.deepEqual(parts('redis://:secret@[::1]:7000/'), {
      ...{ host: '::1', port: 7000, db: 0, password: 'secret', shown: '[::1]:7000' },
    });
  });

  it('has TLS with the name of the host, if it is a name', () => {
    assert.deepEqual(parts('rediss://queue.example:6380'), {
      ...{ host: 'queue.example', port: 6380, db: 0, tls: { servername: 'queue.example' } },
      shown: 'queue.example:6380',
    });
    for (const host of ['10.0.0.7', '[::1]'])
      assert.deepEqual(readAddress(`rediss://${host}`).connection.tls, {});
  });

  it('is not shown if it is invalid', () => {
    for (const url of [
      'secret',
      'http://secret@host',
      'redis://:secret@',
      'redis://:secret@host:99999',
      'redis://:secret@host/name',
      'redis://:secret@host/0?tls=1',
      'redis://:secret@host/0#1',
      'redis://:secret%@host',
      'redis+socket:/secret',
    ])
      assert.throws(
        () => readAddress(url),
        (error) =>
          error instanceof LossError &&
          error.code === 'ERR_INVALID_OPTION' &&
          !/secret/.test(error.message) &&
          /queue: expected a URL such as redis:/.test(error.message),
        url,
      );
  });
});

describe('options of a queue', () => {
  const evaluate = ['evaluate', EXAMPLE, '--loss', 'ppo'];

  it('need each other', async () => {
    await fails(2, [...evaluate, '--queue', 'redis://host'], /--parts: expected a folder/);
    await fails(2, [...evaluate, '--parts', 'parts'], /--queue: expected the URL/);
    await fails(2, ['worker', '--parts', 'parts'], /required option '--queue <url>'/);
    await fails(2, ['join', 'abc', '--queue', 'redis://host'], /required option '--parts <folder>'/);
    await fails(
      2,
      ['worker', '--queue', 'env', '--parts', 'parts'],
      /no environment variable POLICY_LOSS_QUEUE/,
    );
  });

  it('exclude what needs the gradients of all rows', async () => {
    const queue = ['--queue', 'redis://host', '--parts', 'parts'];
    await fails(2, [...evaluate, ...queue, '--micro-batches', '2'], /cannot be used with.*--queue/);
  });

  it('have bounds', async () => {
    const worker = ['worker', '--queue', 'redis://host', '--parts', 'parts'];
    for (const words of [
      ['--concurrency', '0'],
      ['--lock-seconds', '0'],
      ['--retry-seconds', 'soon'],
    ])
      await fails(2, [...worker, ...words], /Expected a/);
  });

  it('name the packages that are missing', async () => {
    const missing = Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' });
    await assert.rejects(
      peer('bullmq', () => Promise.reject(missing)),
      { message: /no package bullmq\. Install them with: npm install bullmq@6 ioredis@6/ },
    );
    const other = new Error('a syntax error');
    await assert.rejects(
      peer('bullmq', () => Promise.reject(other)),
      other,
    );
    assert.equal(await peer('bullmq', async () => 1), 1);
  });
});
