// Stands in for the native module where only declarations are read.
exports.version = require('../../package.json').version;
exports.createFunction = () => ({});
