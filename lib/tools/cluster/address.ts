// The URL of a queue. It may hold a password, so no message shows more of it than the host, the port and the database.
import { LossError } from '../../index.js';

/** How to connect to the queue, in the words of ioredis. */
export interface QueueConnection {
  host: string;
  port: number;
  db: number;
  username?: string;
  password?: string;
  tls?: { servername?: string };
  maxRetriesPerRequest: null;
  /** Returns the milliseconds before the next try to connect; null to give up. */
  retryStrategy: (times: number) => number | null;
  /** The milliseconds after which a command fails that was not answered. */
  commandTimeout?: number;
}

/** Where the queue is, and how to connect to it. */
export interface QueueAddress {
  connection: QueueConnection;
  /** The host, the port and the database, for messages. */
  shown: string;
}

/** The queue and the folder of runs, for those who submit or cancel a run. */
export interface QueueAccess {
  address: QueueAddress;
  /** The folder that has the folders of all runs. */
  parts: string;
  /** Called with errors of the connection, which is then tried again. */
  onError: (error: Error) => void;
}

/**
 * Reads the URL of a queue.
 * @param text such as `redis://host:6379`, or `rediss://user:password@host:6379/2` for TLS.
 * @throws LossError `ERR_INVALID_OPTION`, which does not show the text.
 */
export function readAddress(text: string): QueueAddress {
  const { protocol, hostname, port, username, password, database } = partsOf(text);
  const host = hostname.replace(/^\[(.*)\]$/, '$1');
  const isName = !/^[\d.]+$|:/.test(host);
  return {
    connection: {
      host,
      port: port === '' ? DEFAULT_PORT : Number(port),
      db: Number(database),
      ...(username !== '' && { username }),
      ...(password !== '' && { password }),
      ...(protocol === 'rediss:' && { tls: isName ? { servername: host } : {} }),
      // Commands wait for the server, for as long as it takes to restart.
      maxRetriesPerRequest: null,
      retryStrategy: (times) => Math.min(FIRST_RETRY_MS * 2 ** times, LAST_RETRY_MS),
    },
    shown: `${hostname}:${port || DEFAULT_PORT}${database === '0' ? '' : `/${database}`}`,
  };
}

const DEFAULT_PORT = 6379;
const FIRST_RETRY_MS = 50;
const LAST_RETRY_MS = 5000;

function partsOf(text: string) {
  try {
    const { protocol, hostname, port, username, password, pathname, search, hash } = new URL(text);
    const [, database] = /^\/?(\d{0,5})$/.exec(pathname) ?? [];
    if (/^rediss?:$/.test(protocol) && hostname && database !== undefined && search === '' && hash === '')
      return {
        protocol,
        hostname,
        port,
        username: decodeURIComponent(username),
        password: decodeURIComponent(password),
        database: database || '0',
      };
  } catch {
    // An error of URL or decodeURIComponent could show the password.
  }
  throw new LossError('ERR_INVALID_OPTION', {
    option: 'queue',
    expected: 'a URL such as redis://host:6379 or rediss://user:password@host:6379/0',
    received: 'another text, which is not shown because it may contain a password',
  });
}
