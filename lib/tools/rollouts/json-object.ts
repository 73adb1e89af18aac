// Finds the keys of a JSON object and the places of their values, without parsing the values. A reader then parses only
// the values that it needs, and can look at a value's size before it parses it.
import {
  BACKSLASH,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  COLON,
  COMMA,
  isBlank,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
} from './ascii.js';

// Limits that no row of rollouts comes near. The first keeps recursive functions such as JSON.stringify() from
// overflowing the stack.
const MAX_DEPTH = 1000;
const MAX_KEYS = 10_000;

const NO_BYTES = Buffer.alloc(0);

/**
 * Moves through the entries of JSON objects, one object after another. Of the values, only strings and brackets are
 * checked; the caller must parse the values that it uses.
 */
export class JsonObjectReader {
  /** The key of the current entry. */
  key = '';
  /** The place of the current entry's value in the object's text, in bytes. */
  start = 0;
  end = 0;

  #bytes: Buffer = NO_BYTES;
  // The same text in Latin-1. Short searches and slices are faster in a string than in a buffer.
  #text = '';
  #at = 0;
  // The number of keys so far, and the object's keys. Those after the current one are the previous object's. Most
  // objects of a file have the same keys, and comparing with a known key is faster than reading a new one.
  #count = 0;
  readonly #keys: string[] = [];
  readonly #quotes = new Finder('"');
  readonly #backslashes = new Finder('\\');
  readonly #closings = new Finder(']');
  readonly #lists = new Finder('[');
  readonly #objects = new Finder('{');

  /**
   * Begins an object.
   * @param bytes the object as UTF-8.
   */
  begin(bytes: Buffer): void {
    this.#load(bytes);
    this.#at = 0;
    this.#count = 0;
    this.#expect(OPEN_BRACE);
  }

  /**
   * Moves to the next entry. Entries with equal keys are separate entries. Returns false at the end of the object.
   * @throws SyntaxError if the text is not an object, has too many keys or is nested too deeply.
   */
  next(): boolean {
    if (this.#takes(CLOSE_BRACE)) return this.#finish();
    if (this.#count > 0) this.#expect(COMMA);
    if (this.#count === MAX_KEYS) throw new SyntaxError(`more than ${MAX_KEYS} keys`);
    this.key = this.#readKey();
    this.#expect(COLON);
    this.#skipBlanks();
    this.start = this.#at;
    this.#skipValue();
    this.end = this.#at;
    return true;
  }

  /** The JSON text of the current entry's value, in Latin-1: each of its characters stands for one byte. */
  get value(): string {
    return this.#text.slice(this.start, this.end);
  }

  #finish(): false {
    this.#skipBlanks();
    if (this.#at < this.#bytes.length) throw this.#unexpected();
    // The text may be long, so it must not stay in memory until the next object begins.
    this.#load(NO_BYTES);
    return false;
  }

  #load(bytes: Buffer): void {
    const text = bytes.toString('latin1');
    this.#bytes = bytes;
    this.#text = text;
    for (const finder of [this.#quotes, this.#backslashes, this.#closings, this.#lists, this.#objects])
      finder.begin(text);
  }

  #expect(character: number): void {
    if (!this.#takes(character)) throw this.#unexpected();
  }

  /** Skips blanks, and then the given character if it follows. Returns whether it did. */
  #takes(character: number): boolean {
    this.#skipBlanks();
    if (this.#bytes[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #readKey(): string {
    const index = this.#count++;
    this.#skipBlanks();
    const start = this.#at + 1;
    if (this.#bytes[start - 1] !== QUOTE) throw this.#unexpected();
    const known = this.#keys[index];
    if (known !== undefined && this.#text.startsWith(known, start)) {
      const end = start + known.length;
      if (this.#bytes[end] === QUOTE) {
        this.#at = end + 1;
        return known;
      }
    }
    this.#skipString();
    const key = this.#text.slice(start, this.#at - 1);
    if (!IS_ORDINARY.test(key))
      return JSON.parse(this.#bytes.toString('utf8', start - 1, this.#at)) as string;
    this.#keys[index] = key;
    return key;
  }

  #skipValue(): void {
    const first = this.#bytes[this.#at];
    if (first === QUOTE) this.#skipString();
    else if (first === OPEN_BRACKET && this.#isFlat()) this.#at = this.#closings.next(this.#at) + 1;
    else if (first === OPEN_BRACKET || first === OPEN_BRACE) this.#skipNested();
    else this.#skipWord();
  }

  #skipBlanks(): void {
    while (isBlank(this.#bytes[this.#at])) this.#at++;
  }

  #skipString(): void {
    const start = this.#at + 1;
    const quote = this.#quotes.next(start);
    this.#at = this.#backslashes.next(start) > quote ? quote + 1 : this.#endOfString(this.#at);
  }

  /** Returns the place after the string that begins at `start`. */
  #endOfString(start: number): number {
    const bytes = this.#bytes;
    for (let at = start + 1; at < bytes.length; at++) {
      const character = bytes[at];
      if (character === QUOTE) return at + 1;
      if (character === BACKSLASH) at++;
    }
    throw new SyntaxError('a string without an end');
  }

  /** Returns whether the list that begins here contains no strings, lists and objects. */
  #isFlat(): boolean {
    const end = this.#closings.next(this.#at);
    return (
      end < Number.POSITIVE_INFINITY &&
      this.#quotes.next(this.#at) > end &&
      this.#lists.next(this.#at + 1) > end &&
      this.#objects.next(this.#at) > end
    );
  }

  #skipNested(): void {
    const bytes = this.#bytes;
    const closings = new Uint8Array(MAX_DEPTH);
    let depth = 0;
    for (let at = this.#at; at < bytes.length; at++) {
      const character = bytes[at]!;
      if (IS_PLAIN[character]) continue;
      if (character === QUOTE) at = this.#endOfString(at) - 1;
      else if (character === OPEN_BRACKET || character === OPEN_BRACE) {
        if (depth === MAX_DEPTH) throw new SyntaxError(`more than ${MAX_DEPTH} levels of nesting`);
        // In ASCII, a closing bracket or brace comes two places after the opening one.
        closings[depth++] = character + 2;
      } else {
        this.#at = at;
        if (closings[--depth] !== character) throw this.#unexpected();
        if (depth === 0) {
          this.#at++;
          return;
        }
      }
    }
    throw new SyntaxError(`${depth} lists or objects without an end`);
  }

  /** Skips a number, true, false or null. */
  #skipWord(): void {
    const bytes = this.#bytes;
    const start = this.#at;
    let at = start;
    while (at < bytes.length && bytes[at] !== COMMA && IS_PLAIN[bytes[at]!] && !isBlank(bytes[at])) at++;
    this.#at = at;
    if (at === start) throw this.#unexpected();
  }

  #unexpected(): SyntaxError {
    const [character] = this.#bytes.toString('utf8', this.#at, this.#at + 4);
    return new SyntaxError(
      character === undefined
        ? 'an early end'
        : `unexpected ${JSON.stringify(character)} at byte ${this.#at + 1}`,
    );
  }
}

/**
 * Finds the next occurrence of a character. It remembers the last one that it found, so that all searches together pass
 * over the text once.
 */
class Finder {
  readonly #character: string;
  #text = '';
  #found = -1;

  constructor(character: string) {
    this.#character = character;
  }

  begin(text: string): void {
    this.#text = text;
    this.#found = -1;
  }

  /**
   * Returns the first place at or after `from` that has the character; Infinity if none has. `from` must not be smaller
   * than in the call before.
   */
  next(from: number): number {
    if (this.#found < from) {
      const found = this.#text.indexOf(this.#character, from);
      this.#found = found < 0 ? Number.POSITIVE_INFINITY : found;
    }
    return this.#found;
  }
}

// Keys of these characters are written in JSON as they are. Other keys may have escape sequences.
const IS_ORDINARY = /^[\w ./:-]*$/;
// For each byte, whether it is neither a quote nor a bracket nor a brace.
const IS_PLAIN = new Uint8Array(256).fill(1);
for (const character of [QUOTE, OPEN_BRACKET, CLOSE_BRACKET, OPEN_BRACE, CLOSE_BRACE])
  IS_PLAIN[character] = 0;
