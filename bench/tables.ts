// Writes the tables of bench/README.md and bench/speed.svg from bench/results: npm run bench:tables
import { writeTables } from './lib/readme.js';

writeTables();
