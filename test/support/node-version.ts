/** What the version of Node can do that runs the tests. */

const [major, minor] = process.versions.node.split('.').map(Number) as [number, number];

/** Whether SQLite files can be read: from Node 22.13 on, Node has its own SQLite. */
export const readsSqlite = major > 22 || (major === 22 && minor >= 13);
