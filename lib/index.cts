// What require('policy-loss') gives: the very module that import gives.
import all = require('./index.js');
export = all;
