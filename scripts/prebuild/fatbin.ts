// Reads the CUDA code in a native module. nvcc puts it into the section .nv_fatbin, which contains one fat binary for
// each source file. A fat binary has one entry for each GPU architecture: machine code (a cubin, which is an ELF file),
// or PTX, which the driver compiles.
//
// NVIDIA does not document the format. The offsets below hold for CUDA 11 to 13.

/** The code in a fat binary for one architecture. */
export interface CudaCode {
  kind: 'cubin' | 'ptx';
  /** The compute capability as 10·major + minor, such as 90. */
  capability: number;
  /**
   * Cubins: the version of NVIDIA's ELF ABI. The first drivers to load ABI 7 are older than CUDA 12, and the first to
   * load ABI 8 are those of CUDA 13.
   */
  abi?: number;
  /** PTX: the version of the PTX language as 10·major + minor, such as 84. */
  version?: number;
}

const MAGIC = 0xba55ed50;
const KINDS: Record<number, CudaCode['kind']> = { 1: 'ptx', 2: 'cubin' };
const LZ4 = 0x2000n;
const ZSTD = 0x8000n;

/** Returns the code in each fat binary of a section .nv_fatbin. Throws if the section has another format. */
export function readFatBinaries(section: Buffer): CudaCode[][] {
  const binaries: CudaCode[][] = [];
  let at = 0;
  while (at < section.length) {
    // The linker aligns fat binaries with zeros.
    if (section.length - at < 16 || section.readUInt32LE(at) === 0) {
      at += 8;
      continue;
    }
    if (section.readUInt32LE(at) !== MAGIC) throw new Error(`.nv_fatbin: no fat binary at offset ${at}`);
    const begin = at + section.readUInt16LE(at + 6);
    const end = begin + Number(section.readBigUInt64LE(at + 8));
    binaries.push(readEntries(section.subarray(begin, end)));
    at = end;
  }
  return binaries;
}

function readEntries(binary: Buffer): CudaCode[] {
  const entries: CudaCode[] = [];
  for (let at = 0; at < binary.length; ) {
    const kind = KINDS[binary.readUInt16LE(at)];
    if (!kind) throw new Error(`.nv_fatbin: entry of unknown kind ${binary.readUInt16LE(at)}`);
    const header = binary.readUInt32LE(at + 4);
    const size = Number(binary.readBigUInt64LE(at + 8));
    const capability = binary.readUInt32LE(at + 28);
    const flags = binary.readBigUInt64LE(at + 40);
    const content = binary.subarray(at + header, at + header + size);
    entries.push(
      kind === 'ptx'
        ? {
            kind,
            capability,
            version: 10 * binary.readUInt16LE(at + 26) + binary.readUInt16LE(at + 24),
          }
        : { kind, capability, abi: abiOf(content, flags) },
    );
    at += header + size;
  }
  return entries;
}

// Returns byte 8 of a cubin's ELF header, which is the version of the ABI. No part of the header occurs twice, so LZ4
// leaves its first bytes as they are, after one byte that tells their number.
function abiOf(content: Buffer, flags: bigint): number {
  if (flags & ZSTD) throw new Error('.nv_fatbin: compressed with Zstandard, which old drivers cannot read');
  const elf = flags & LZ4 ? content.subarray(1, 1 + (content[0]! >> 4)) : content;
  if (elf.toString('latin1', 0, 4) !== '\x7fELF' || elf.length < 9)
    throw new Error('.nv_fatbin: expected a cubin that begins with an ELF header');
  return elf[8]!;
}
