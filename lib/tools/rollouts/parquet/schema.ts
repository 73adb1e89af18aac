// The schema of a Parquet file as a tree.
import type { SchemaElement } from 'hyparquet';
import { Malformed } from './malformed.js';

/**
 * A column or a part of a nested column. Its values are stored with two levels. The definition level says how many of
 * the optional and repeated nodes on the way to the value are present. The repetition level says which of the lists on
 * the way the value continues, or 0 for the first value of a row.
 */
export interface Node {
  element: SchemaElement;
  children: Node[];
  /** The definition level from which on this node is present. */
  definition: number;
  /** The number of repeated nodes on the way to this node, including itself. */
  repetition: number;
  /** The index among the columns that a row group stores, or -1 if this node has children. */
  leaf: number;
  /** The stored columns of which the node consists. */
  leaves: Node[];
}

const MAX_COLUMNS = 10_000;
const MAX_DEPTH = 32;

/** Returns the root of the tree. The elements of the schema are in depth-first order. */
export function schemaTree(elements: readonly SchemaElement[]): Node {
  if (elements.length > MAX_COLUMNS)
    throw new Malformed(`at most ${MAX_COLUMNS} columns`, `${elements.length}`);
  let leaves = 0;
  let next = 0;
  const nodeOf = (depth: number, parent?: Node): Node => {
    const element = elements[next++];
    const { type, repetition_type: occurs, num_children: count } = element ?? {};
    const isValid = parent ? type !== undefined || Number(count) > 0 : type === undefined;
    if (!element || !isValid) throw new Malformed('a schema in which each column has a type', 'another');
    if (depth > MAX_DEPTH) throw new Malformed(`columns of at most ${MAX_DEPTH} levels`, 'a deeper schema');
    const node: Node = {
      element: { ...element, name: element.name ?? '' },
      children: [],
      definition: (parent?.definition ?? 0) + (parent && occurs !== 'REQUIRED' ? 1 : 0),
      repetition: (parent?.repetition ?? 0) + (parent && occurs === 'REPEATED' ? 1 : 0),
      leaf: type ? leaves++ : -1,
      leaves: [],
    };
    if (!type) for (let i = 0; i < Number(count ?? 0); i++) node.children.push(nodeOf(depth + 1, node));
    node.leaves = type ? [node] : node.children.flatMap((child) => child.leaves);
    return node;
  };
  return nodeOf(0);
}

/** Returns the parts of a list: the node that is repeated, and the node of an element. Undefined if it is no list. */
export function listOf({ element, children }: Node): { repeated: Node; item: Node } | undefined {
  const [repeated] = children;
  const isList = element.converted_type === 'LIST' || element.logical_type?.type === 'LIST';
  if (!isList || children.length !== 1 || repeated?.element.repetition_type !== 'REPEATED') return undefined;
  const [item] = repeated.children;
  // Older writers have no node between the list and its elements, even if these have a single part.
  const { name } = repeated.element;
  const isItem = repeated.children.length !== 1 || name === 'array' || name === `${element.name}_tuple`;
  return { repeated, item: isItem ? repeated : item! };
}

/** Returns the repeated node of a map, which has a key and a value. Undefined if the node is no map. */
export function mapOf({ element, children }: Node): Node | undefined {
  const [repeated] = children;
  const isMap =
    element.converted_type === 'MAP' ||
    element.converted_type === 'MAP_KEY_VALUE' ||
    element.logical_type?.type === 'MAP';
  const isRepeated = children.length === 1 && repeated!.element.repetition_type === 'REPEATED';
  return isMap && isRepeated && repeated!.children.length === 2 ? repeated : undefined;
}
