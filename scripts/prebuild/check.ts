// Checks a prebuilt binary with LLVM's tools, which can read the binaries of all platforms. The binary must be built
// for its platform. It may need only libraries of the system, and no glibc newer than LEAST_GLIBC. It must import
// functions of the Node-API, but none of a C++ library. On Linux it must have no symbol table, and on macOS it must be
// signed. Its CUDA code must be for the right architectures, and the driver LEAST_DRIVER must be able to load it.
import { execFileSync } from 'node:child_process';
import { closeSync, openSync, readSync, statSync } from 'node:fs';
import {
  LEAST_DRIVER,
  LEAST_GLIBC,
  PREBUILDS,
  type Prebuild,
  type PrebuildName,
} from '../../lib/base/prebuilds.js';
import { type CudaCode, readFatBinaries } from './fatbin.js';

interface Format {
  /** The format's name, as llvm-readobj prints it. */
  name: string;
  /** Matches the names of the libraries that a binary may need. A binary for musl may need only the library MUSL. */
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

/** The CUDA code of a prebuilt binary. The driver compiles the PTX for later GPUs. */
export const CUDA_CODE = ['cubin 80', 'cubin 86', 'cubin 89', 'cubin 90', 'ptx 90'];
/** The CUDA code of a draft. */
export const DRAFT_CUDA_CODE = ['cubin 80'];
// The newest ELF ABI of cubins that LEAST_DRIVER loads. ABI 8 needs the drivers of CUDA 13.
const NEWEST_ABI = 7;
// The newest PTX that the first driver for GPUs later than those of CUDA_CODE compiles. This is driver 570 of CUDA
// 12.8, because of the Blackwell GPUs.
const NEWEST_PTX = 87;
const MOST_BYTES = { withCuda: 14e6, withoutCuda: 3e6 };

/**
 * Returns one message per fault of a prebuilt binary. The list is empty if the binary has no faults.
 * @param cudaCode the CUDA code that it must have, if it is for a platform with CUDA.
 */
export function faultsOf(
  file: string,
  name: PrebuildName,
  cudaCode: readonly string[] = CUDA_CODE,
): string[] {
  const { os, arch, libc, cuda }: Prebuild = PREBUILDS[name];
  const format = FORMATS[`${os}-${arch}`]!;
  const found = /^Format: (.*)$/m.exec(llvm('readobj', '--file-headers', file))?.[1];
  if (found !== format.name) return [`${name}: expected a file of format ${format.name}, got ${found}`];

  const faults: string[] = [];
  const libraries = librariesOf(file, os);
  const allowed = libc === 'musl' ? MUSL : format.libraries;
  for (const library of libraries.filter((needed) => !allowed.test(needed)))
    faults.push(`it needs ${library}, which is not a library of the system`);

  const imports = importsOf(file, os);
  if (!imports.some((symbol) => symbol.startsWith('napi_')))
    faults.push('it imports no function of the Node-API');
  for (const symbol of imports.filter(isOfCppLibrary)) faults.push(`it imports ${symbol} from a C++ library`);
  if (libc === 'glibc')
    for (const [, version] of imports.join('\n').matchAll(/@GLIBC_([\d.]+)/g))
      if (compareVersions(version!, LEAST_GLIBC) > 0)
        faults.push(`it needs glibc ${version}, expected at most ${LEAST_GLIBC}`);
  if (os === 'linux' && /Name: \.symtab\b/.test(llvm('readobj', '--sections', file)))
    faults.push('it is not stripped');
  if (os === 'darwin' && !llvm('objdump', '--macho', '--private-headers', file).includes('LC_CODE_SIGNATURE'))
    faults.push('it is not signed, which arm64 requires');
  if (os === 'linux') faults.push(...cudaFaults(cudaCodeOf(file), cuda ? cudaCode : []));
  const bytes = statSync(file).size;
  const most = cuda ? MOST_BYTES.withCuda : MOST_BYTES.withoutCuda;
  if (bytes > most) faults.push(`it has ${bytes} bytes, expected at most ${most}`);
  return [...new Set(faults)].map((fault) => `${name}: ${fault}`);
}

/**
 * Returns the CUDA code of an ELF binary for Linux. Each element holds the code of one source file, and is empty if the
 * binary was built without CUDA.
 */
export function cudaCodeOf(file: string): CudaCode[][] {
  const { offset, size } = cudaSectionOf(file);
  if (size === 0) return [];
  const section = Buffer.alloc(size);
  const opened = openSync(file, 'r');
  try {
    readSync(opened, section, 0, size, offset);
  } finally {
    closeSync(opened);
  }
  return readFatBinaries(section);
}

/** Returns where in an ELF file the section with the CUDA code is, in bytes. The size is 0 if there is none. */
function cudaSectionOf(file: string): { offset: number; size: number } {
  const found = /Name: \.nv_fatbin \((?:.|\n)*?Offset: (\S+)\n\s+Size: (\S+)/.exec(
    llvm('readobj', '--sections', file),
  );
  return { offset: Number(found?.[1] ?? 0), size: Number(found?.[2] ?? 0) };
}

function cudaFaults(binaries: CudaCode[][], expected: readonly string[]): string[] {
  const names = (codes: readonly string[]) => [...codes].sort().join(', ') || 'none';
  if (binaries.length === 0) binaries = [[]];
  const faults: string[] = [];
  for (const codes of binaries) {
    const found = names(codes.map(({ kind, capability }) => `${kind} ${capability}`));
    if (found !== names(expected)) faults.push(`expected the CUDA code ${names(expected)}, got ${found}`);
    for (const { abi = 0, version = 0 } of codes) {
      if (abi > NEWEST_ABI)
        faults.push(
          `it has cubins of ELF ABI ${abi}, expected at most ${NEWEST_ABI}, which the driver ${LEAST_DRIVER} loads`,
        );
      if (version > NEWEST_PTX)
        faults.push(`it has PTX ${version / 10}, expected at most ${NEWEST_PTX / 10}`);
    }
  }
  return faults;
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

// Returns the names of the symbols that the binary imports. On Linux they include versions, as in memcpy@GLIBC_2.14.
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

// Returns whether a symbol belongs to a C++ library. The __cxa_ functions that the pattern excludes belong to the C
// library.
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
    throw new Error(`llvm-${tool}: not found. It is in Debian's package llvm.`);
  }
}
