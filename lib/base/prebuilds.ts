// The platforms for which the package has a prebuilt binary. The build scripts and the loader both use this list.

/** A platform that has a prebuilt binary. `os` and `arch` are values of process.platform and process.arch in Node. */
export interface Prebuild {
  os: 'linux' | 'darwin' | 'win32';
  arch: 'x64' | 'arm64';
  /** The C library for which the binary is built; Linux only. */
  libc?: Libc;
  /** true if the binary contains CUDA kernels. */
  cuda?: true;
}

export type Libc = 'glibc' | 'musl';

/** All prebuilt binaries, under the names that the build scripts use. */
export const PREBUILDS = {
  'linux-x64-glibc': { os: 'linux', arch: 'x64', libc: 'glibc', cuda: true },
  'linux-x64-musl': { os: 'linux', arch: 'x64', libc: 'musl' },
  'linux-arm64-glibc': { os: 'linux', arch: 'arm64', libc: 'glibc', cuda: true },
  'linux-arm64-musl': { os: 'linux', arch: 'arm64', libc: 'musl' },
  'darwin-arm64': { os: 'darwin', arch: 'arm64' },
  'win32-x64': { os: 'win32', arch: 'x64' },
} as const satisfies Record<string, Prebuild>;

export type PrebuildName = keyof typeof PREBUILDS;

/** The oldest version of glibc that the prebuilt binaries support. */
export const LEAST_GLIBC = '2.28';

/** The oldest NVIDIA driver that runs the CUDA kernels of the prebuilt binaries, as the first part of its version. */
export const LEAST_DRIVER = '525';

/**
 * Returns the path of a prebuilt binary, relative to the package's root. The file has the name that prebuildify would
 * give it.
 */
export function prebuildPath(os: string, arch: string, libc?: Libc): string {
  return `prebuilds/${os}-${arch}/policy-loss${libc ? `.${libc}` : ''}.node`;
}

/** Returns the platforms that have a prebuilt binary as text for messages: 'linux-x64 (glibc ≥ 2.28, musl), …'. */
export function describePrebuilds(): string {
  const libcs = new Map<string, string[]>();
  for (const { os, arch, libc } of Object.values(PREBUILDS) as Prebuild[]) {
    const of = `${os}-${arch}`;
    libcs.set(of, [...(libcs.get(of) ?? []), ...(libc ? [libc] : [])]);
  }
  return [...libcs]
    .map(([of, names]) => {
      const words = names.map((name) => (name === 'glibc' ? `glibc ≥ ${LEAST_GLIBC}` : name));
      return words.length > 0 ? `${of} (${words.join(', ')})` : of;
    })
    .join(', ');
}
