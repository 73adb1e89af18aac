// Node loads this file before the program under test. The file replaces Node's functions that open a socket or make a
// DNS query with functions that throw. When the process ends, the file reports which of these functions were called,
// and which sockets are open.
import { readdirSync, readlinkSync, writeFileSync } from 'node:fs';
import { createRequire, syncBuiltinESMExports } from 'node:module';

const require = createRequire(import.meta.url);
const seen = [];
const refuse = (what) =>
  function refused() {
    seen.push(what);
    throw new Error(`the command line must not use ${what}`);
  };

const net = require('node:net');
net.Server.prototype.listen = refuse('net.Server.listen');
net.Socket.prototype.connect = refuse('net.Socket.connect');
const dgram = require('node:dgram');
dgram.createSocket = refuse('dgram.createSocket');
const dns = require('node:dns');
for (const of of [dns, dns.promises])
  for (const name of Object.keys(of))
    if (/^(lookup|resolve|reverse)/.test(name)) of[name] = refuse(`dns.${name}`);
for (const name of ['node:http', 'node:https']) {
  const http = require(name);
  for (const call of ['request', 'get']) http[call] = refuse(`${name}.${call}`);
}
globalThis.fetch = refuse('fetch');
syncBuiltinESMExports();

process.on('exit', () => {
  let sockets = [];
  try {
    sockets = readdirSync('/proc/self/fd').flatMap((fd) => {
      try {
        const to = readlinkSync(`/proc/self/fd/${fd}`);
        return to.startsWith('socket:') ? [to] : [];
      } catch {
        return []; // this was the descriptor of the folder listing, which is already closed
      }
    });
  } catch {
    // This system has no /proc, so open sockets cannot be found.
  }
  writeFileSync(process.env.POLICY_LOSS_SEEN, JSON.stringify({ seen, sockets }));
});
