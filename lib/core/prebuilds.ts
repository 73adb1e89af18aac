// The platforms with a prebuilt binary. The build scripts and the loader both use this list.

/** A platform, by Node's names. */
export interface Prebuild {
  os: 'linux' | 'darwin' | 'win32';
  arch: 'x64' | 'arm64';
  /** The C library; Linux only. */
  libc?: Libc;
  /** Whether the binary contains CUDA kernels. */
  cuda?: true;
}

export type Libc = 'glibc' | 'musl';

/** Every prebuilt binary, by the name that the build scripts use. */
export const PREBUILDS = {
  'linux-x64-glibc': { os: 'linux', arch: 'x64', libc: 'glibc', cuda: true },
  'linux-x64-musl': { os: 'linux', arch: 'x64', libc: 'musl' },
  'linux-arm64-glibc': { os: 'linux', arch: 'arm64', libc: 'glibc' },
  'linux-arm64-musl': { os: 'linux', arch: 'arm64', libc: 'musl' },
  'darwin-arm64': { os: 'darwin', arch: 'arm64' },
  'win32-x64': { os: 'win32', arch: 'x64' },
} as const satisfies Record<string, Prebuild>;

export type PrebuildName = keyof typeof PREBUILDS;

/** The oldest glibc that the binaries support. */
export const LEAST_GLIBC = '2.28';

/** Returns a binary's path from the package's root, as prebuildify names it. */
export function prebuildPath(os: string, arch: string, libc?: Libc): string {
  return `prebuilds/${os}-${arch}/policy-loss${libc ? `.${libc}` : ''}.node`;
}

/** Returns the platforms in words: 'linux-x64 (glibc ≥ 2.28, musl), …'. */
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
