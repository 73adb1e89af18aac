// The version in package.json, which native modules must have. It stands here too because a bundle has no package.json.
export const VERSION = '0.1.0';
