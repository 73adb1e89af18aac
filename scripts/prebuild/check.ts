// What must be true of a prebuilt binary, read from the file itself by LLVM's tools, which know all formats: that it
// is for its platform, needs nothing but the system's own libraries (and of glibc nothing newer than promised), takes
// the Node-API and no C++ library from outside, and carries no symbols that nobody reads.
import { execFileSync } from 'node:child_process';
import { LEAST_GLIBC, PREBUILDS, type Prebuild, type PrebuildName } from '../../lib/core/prebuilds.js';

interface Format {
  /** As llvm-readobj names it. */
  name: string;
  /** The libraries that it may need. */
  libraries: RegExp;
}

const FORMATS: Record<string, Format> = {
  'linux-x64': {
    name: 'elf64-x86-64',
    libraries: /^(lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-x86-64\.so\.2)$/,
  },
  'linux-arm64': {
    name: 'elf64-littleaarch64',
    libraries: /^(lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-aarch64\.so\.1)$/,
  },
  'darwin-arm64': {
    name: 'Mach-O arm64',
    libraries: /^(\/usr\/lib\/libSystem\.B\.dylib|@rpath\/policy_loss\.node)$/,
  },
  'win32-x64': {
    name: 'COFF-x86-64',
    libraries: /^(NODE\.EXE|KERNEL32\.dll|ntdll\.dll|api-ms-win-crt-[\w-]+\.dll)$/i,
  },
};
const MUSL = /^libc\.so$/;

/** @returns what is wrong with a binary; nothing where all is well. */
export function faultsOf(file: string, name: PrebuildName): string[] {
  const { os, arch, libc }: Prebuild = PREBUILDS[name];
  const format = FORMATS[`${os}-${arch}`]!;
  const found = /^Format: (.*)$/m.exec(llvm('readobj', '--file-headers', file))?.[1];
  if (found !== format.name) return [`${name}: expected a file of format ${format.name}, not ${found}`];

  const faults: string[] = [];
  const libraries = librariesOf(file, os);
  const allowed = libc === 'musl' ? MUSL : format.libraries;
  for (const library of libraries.filter((needed) => !allowed.test(needed)))
    faults.push(`it needs ${library}, which is not of the system`);

  const imports = importsOf(file, os);
  if (!imports.some((symbol) => symbol.startsWith('napi_'))) faults.push('it takes nothing of the Node-API');
  for (const symbol of imports.filter(isOfCppLibrary))
    faults.push(`it takes ${symbol} from a C++ library that is not there`);
  if (libc === 'glibc')
    for (const [, version] of imports.join('\n').matchAll(/@GLIBC_([\d.]+)/g))
      if (compareVersions(version!, LEAST_GLIBC) > 0)
        faults.push(`it needs glibc ${version}, not only ${LEAST_GLIBC}`);
  if (os === 'linux' && /Name: \.symtab\b/.test(llvm('readobj', '--sections', file)))
    faults.push('it is not stripped');
  if (os === 'darwin' && !llvm('objdump', '--macho', '--private-headers', file).includes('LC_CODE_SIGNATURE'))
    faults.push('it is not signed, and arm64 runs no code that is not');
  return [...new Set(faults)].map((fault) => `${name}: ${fault}`);
}

function librariesOf(file: string, os: Prebuild['os']): string[] {
  if (os === 'win32')
    return [...llvm('readobj', '--coff-imports', file).matchAll(/^\s+Name: (.*)$/gm)].map(
      ([, name]) => name!,
    );
  const list = /NeededLibraries \[([^\]]*)\]/.exec(llvm('readobj', '--needed-libs', file))?.[1] ?? '';
  return list
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean);
}

// With their versions, where they have any.
function importsOf(file: string, os: Prebuild['os']): string[] {
  switch (os) {
    case 'win32':
      return [...llvm('readobj', '--coff-imports', file).matchAll(/^\s+Symbol: (\S+)/gm)].map(
        ([, name]) => name!,
      );
    case 'darwin':
      return symbolsOf(llvm('nm', '--undefined-only', file)).map((name) => name.replace(/^_/, ''));
    case 'linux':
      return symbolsOf(llvm('nm', '--dynamic', '--undefined-only', file));
  }
}

function symbolsOf(listing: string): string[] {
  return listing.split('\n').flatMap((line) => /(\S+)$/.exec(line)?.[1] ?? []);
}

// Of the C++ library and its runtime; what libc has a part of, to end threads and processes well, is C's.
function isOfCppLibrary(symbol: string): boolean {
  return /^(_Z|\?|__cxa_(?!finalize|atexit|thread_atexit)|__gxx_|__once_proxy)/.test(symbol);
}

function compareVersions(a: string, b: string): number {
  const [x, y] = [a, b].map((version) => version.split('.').map(Number)) as [number[], number[]];
  return x[0]! - y[0]! || (x[1] ?? 0) - (y[1] ?? 0);
}

function llvm(tool: string, ...args: string[]): string {
  try {
    return execFileSync(`llvm-${tool}`, args, { encoding: 'utf8', maxBuffer: 2 ** 28 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    throw new Error(`llvm-${tool} is not there; Debian's package llvm has it`);
  }
}
