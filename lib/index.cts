// The entry point for require('policy-loss'), which returns the same module as `import` does.
import all = require('./index.js');
export = all;
