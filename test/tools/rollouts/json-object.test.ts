/** Tests that the reader of JSON objects finds the same keys and values as JSON.parse(). */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { JsonObjectReader } from '../../../lib/tools/rollouts/json-object.js';

/** Returns the entries of an object, with the parsed values. */
function entriesOf(json: string | Buffer, reader = new JsonObjectReader()): [key: string, value: unknown][] {
  const bytes = Buffer.from(json);
  const entries: [string, unknown][] = [];
  reader.begin(bytes);
  while (reader.next()) {
    const { key, value, start, end } = reader;
    assert.equal(value, bytes.toString('latin1', start, end));
    entries.push([key, JSON.parse(bytes.toString('utf8', start, end))]);
  }
  return entries;
}

const objects = fc.dictionary(
  fc.oneof(fc.string(), fc.constantFrom('a', 'logprobs', '__proto__', 'é"\\', '\u2028', '')),
  fc.oneof(fc.jsonValue(), fc.array(fc.double({ noNaN: true, noDefaultInfinity: true }))),
  { maxKeys: 6 },
);

describe('JSON objects', () => {
  it('have the entries that JSON.parse() finds, whatever came before', () => {
    // The reader remembers the keys of the object before, so one reader reads all objects.
    const reader = new JsonObjectReader();
    fc.assert(
      fc.property(objects, fc.constantFrom(0, 1, '\t'), (object, space) => {
        const json = JSON.stringify(object, null, space);
        assert.deepEqual(entriesOf(json, reader), Object.entries(JSON.parse(json)));
      }),
      { numRuns: 2000 },
    );
  });

  it('are found in all changed text that JSON.parse() accepts', () => {
    const edit = fc.record({
      at: fc.nat(),
      cut: fc.nat(2),
      put: fc.constantFrom(...'{}[]",:\\ 1x\u0000', ''),
    });
    fc.assert(
      fc.property(objects, fc.array(edit, { minLength: 1, maxLength: 3 }), (object, edits) => {
        let json = JSON.stringify(object);
        for (const { at, cut, put } of edits) {
          const from = at % (json.length + 1);
          json = json.slice(0, from) + put + json.slice(from + cut);
        }
        let parsed: unknown;
        try {
          parsed = JSON.parse(json);
        } catch {
          // The reader does not check everything, but it must end in entries or in this error.
          try {
            entriesOf(json);
          } catch (error) {
            assert.ok(error instanceof SyntaxError, String(error));
          }
          return;
        }
        if (parsed !== null && typeof parsed === 'object' && !Array.isArray(parsed))
          assert.deepEqual(Object.fromEntries(entriesOf(json)), parsed);
        else assert.throws(() => entriesOf(json), SyntaxError);
      }),
      { numRuns: 3000 },
    );
  });

  it('may have a key several times, however it is written', () => {
    assert.deepEqual(entriesOf('{"a":1,"\\u0061":[2],"a":"3"}'), [
      ['a', 1],
      ['a', [2]],
      ['a', '3'],
    ]);
  });

  it('are refused if a value is nested too deeply or there are too many keys', () => {
    const nested = (depth: number) => `{"a":${'['.repeat(depth)}${']'.repeat(depth)}}`;
    assert.equal(entriesOf(nested(1000)).length, 1);
    assert.throws(() => entriesOf(nested(1001)), /more than 1000 levels of nesting/);
    assert.throws(() => entriesOf(`{"a":${'{"a":['.repeat(1e6)}`), /more than 1000 levels of nesting/);
    const keys = (count: number) => `{${Array.from({ length: count }, (_, i) => `"${i}":0`).join()}}`;
    assert.equal(entriesOf(keys(10_000)).length, 10_000);
    assert.throws(() => entriesOf(keys(10_001)), /more than 10000 keys/);
  });

  it('are refused with the problem and its place', () => {
    for (const [json, problem] of [
      ['', /an early end/],
      ['[1]', /unexpected "\[" at byte 1/],
      ['{"a":1', /an early end/],
      ['{"a":1,}', /unexpected "}" at byte 8/],
      ['{"a" 1}', /unexpected "1" at byte 6/],
      ['{"a":1} é', /unexpected "é" at byte 9/],
      ['{"a":"b}', /a string without an end/],
      ['{"a":[{]}', /unexpected "]" at byte 8/],
      ['{"a":[[1]', /1 lists or objects without an end/],
      ['{"\u0000":1}', /control character/],
    ] as const)
      assert.throws(
        () => entriesOf(json),
        (error: unknown) => error instanceof SyntaxError && problem.test(error.message),
        json,
      );
  });
});
