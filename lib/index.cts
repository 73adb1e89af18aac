// The entry of require('policy-loss'). It returns the same module as import.
import all = require('./index.js');
export = all;
