// The stack of a pickle, its marks, and its memo of values that are used again.
import { BadObject } from './values.js';

/** A mark on the stack: the height of the stack, the place after the opcode, and whether only plain values follow. */
interface Mark {
  height: number;
  position: number;
  isPlain: boolean;
}

const MAX_VALUES = 1 << 21;
const MAX_MARKS = 1 << 14;
const MAX_MEMO = 1 << 22;

/** All functions throw a {@link BadObject} if a pickle asks for what is not there, or for too much. */
export class Stack {
  readonly #values: unknown[] = [];
  readonly #marks: Mark[] = [];
  // Picklers number their memo from 0, so that the indices are dense. Others are in the map.
  readonly #memo: unknown[] = [];
  readonly #sparseMemo = new Map<number, unknown>();

  push(value: unknown): void {
    if (this.#values.length === MAX_VALUES)
      throw new BadObject(`at most ${MAX_VALUES} values at once`, 'more');
    this.#values.push(value);
  }

  pop(): unknown {
    this.#checkHeight(1);
    return this.#values.pop();
  }

  popSeveral(count: number): unknown[] {
    this.#checkHeight(count);
    return this.#values.splice(this.#values.length - count);
  }

  top(): unknown {
    this.#checkHeight(1);
    return this.#values.at(-1);
  }

  /** Returns the value on top, even if it is before the last mark; undefined if there is none. */
  peek(): unknown {
    return this.#values.at(-1);
  }

  /** Returns the only value that is left. */
  last(): unknown {
    if (this.#values.length !== 1 || this.#marks.length > 0)
      throw new BadObject('one value at the end', String(this.#values.length));
    return this.#values[0];
  }

  /** @param position the place after the opcode that sets the mark. */
  mark(position: number): void {
    if (this.#marks.length === MAX_MARKS) throw new BadObject(`at most ${MAX_MARKS} open containers`, 'more');
    this.#marks.push({ height: this.#values.length, position, isPlain: true });
  }

  /** Says that an opcode after the last mark pushes another value than a plain one. */
  endPlain(): void {
    const mark = this.#marks.at(-1);
    if (mark) mark.isPlain = false;
  }

  /** Returns the values after the last mark, and removes the mark. */
  popMark(): { items: unknown[]; position: number; isPlain: boolean } {
    const mark = this.#marks.pop();
    if (!mark) throw new BadObject('a mark on the stack', 'none');
    const { height, position, isPlain } = mark;
    return { items: this.#values.splice(height), position, isPlain };
  }

  /** Stores the value on top in the memo, by default at the next index. */
  memoize(index = this.#memo.length + this.#sparseMemo.size): void {
    const value = this.top();
    if (this.#memo.length + this.#sparseMemo.size >= MAX_MEMO)
      throw new BadObject(`at most ${MAX_MEMO} shared values`, 'more');
    if (index < this.#memo.length) this.#memo[index] = value;
    else if (index === this.#memo.length) this.#memo.push(value);
    else this.#sparseMemo.set(index, value);
  }

  /** Pushes the value with this index in the memo. */
  recall(index: number): void {
    if (index < this.#memo.length) this.push(this.#memo[index]);
    else if (this.#sparseMemo.has(index)) this.push(this.#sparseMemo.get(index));
    else throw new BadObject('a value that was memoized', `memo ${index}`);
  }

  #checkHeight(count: number): void {
    if (this.#values.length - count < (this.#marks.at(-1)?.height ?? 0))
      throw new BadObject(count === 1 ? 'a value on the stack' : `${count} values on the stack`, 'fewer');
  }
}
