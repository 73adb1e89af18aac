#!/usr/bin/env bash
# Prints the folder of the CUDA toolkit with which the prebuilt binaries are built:
#
#   toolkit.sh            the compiler, and the headers and the static runtime for Linux x64
#   toolkit.sh --arm64    also has the static runtime for Linux arm64
#
# On first use, downloads about 1 GB of Debian's packages (2 GB with --arm64) and keeps the 170 MB that are needed, in
# ~/.cache/policy-loss. Needs an x64 machine with apt whose sources include a mirror of Debian. Installs nothing: apt
# gets package lists of its own, and the packages are only unpacked.
set -euo pipefail

release=trixie # the release of Debian that has CUDA 12.4
cache=${XDG_CACHE_HOME:-$HOME/.cache}/policy-loss
root=$cache/cuda-12.4
arm64=
case ${1:-} in
  '') ;;
  --arm64) arm64=1 ;;
  *) echo "toolkit.sh: expected no argument or --arm64, got $1" >&2; exit 2 ;;
esac

fail() { echo "toolkit.sh: $1" >&2; exit 1; }

# Calls apt with lists of packages of its own, which contain only the release above.
private() {
  local command=$1
  shift
  "$command" -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists" \
    -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" -o APT::Architecture=amd64 \
    -o APT::Architectures=amd64,arm64 -o Acquire::Languages=none -qq "$@"
}

# Reads the package lists from the first of this machine's package sources that has the release.
read_lists() {
  local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$work"/{sources,lists/partial,cache/archives/partial}
  for uri in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u); do
    echo "deb [arch=amd64,arm64 signed-by=$keyring] $uri $release main non-free" >"$work/sources/debian.list"
    if private apt-get update 2>>"$work/log" && [ -n "$(private apt-cache pkgnames nvidia-cuda-dev)" ]; then
      return
    fi
  done
  cat "$work/log" >&2
  fail "nvidia-cuda-dev: none of this machine's package sources has Debian $release"
}

# Downloads a package and unpacks the members that match the patterns into the folder $work/files.
unpack() {
  local package=$1
  shift
  (cd "$work" && private apt-get download "$package")
  mkdir -p "$work/files"
  dpkg-deb --fsys-tarfile "$work/${package%:*}"_*.deb | tar -x -C "$work/files" --wildcards "$@"
  rm "$work/${package%:*}"_*.deb
}

# Moves the headers and libraries of one architecture to where nvcc looks for them.
move_target() {
  local to=$work/root/targets/$1 libraries=$work/files/usr/lib/$2
  mkdir -p "$to/lib"
  mv "$libraries"/*.a "$to/lib/"
  mv "$work/files/usr/include" "$to/include"
}

get_compiler() {
  local files=$work/files made=$work/root
  unpack nvidia-cuda-toolkit:amd64 './usr/bin/*' './usr/lib/nvidia-cuda-toolkit/bin/*' \
    './usr/lib/nvidia-cuda-toolkit/libdevice/*'
  mkdir -p "$made"/{bin,nvvm/bin}
  for program in bin2c cu++filt cudafe++ cuobjdump fatbinary nvdisasm nvlink ptxas __nvcc_device_query; do
    mv "$files/usr/bin/$program" "$made/bin/"
  done
  mv "$files/usr/lib/nvidia-cuda-toolkit/bin"/{nvcc,crt} "$made/bin/"
  mv "$files/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$made/nvvm/bin/"
  mv "$files/usr/lib/nvidia-cuda-toolkit/libdevice" "$made/nvvm/"
  # Debian's nvcc.profile names Debian's folders. This one has the content of NVIDIA's.
  cat >"$made/bin/nvcc.profile" <<'PROFILE'
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib:
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        +=  "-I$(TOP)/$(_TARGET_DIR_)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)/stubs" "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
PROFILE
  unpack libcu++-dev './usr/include/*'
  unpack nvidia-cuda-dev:amd64 './usr/include/*' '*/libcudart_static.a' '*/libcudadevrt.a'
  move_target x86_64-linux x86_64-linux-gnu
  ln -s targets/x86_64-linux/include "$made/include"
  ln -s targets/x86_64-linux/lib "$made/lib64"
}

get_arm64() {
  unpack libcu++-dev './usr/include/*'
  unpack nvidia-cuda-dev:arm64 './usr/include/*' '*/libcudart_static.a' '*/libcudadevrt.a'
  move_target sbsa-linux aarch64-linux-gnu
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$root/bin/nvcc" ] || { [ -n "$arm64" ] && [ ! -d "$root/targets/sbsa-linux" ]; }; then
  [ "$(uname -sm)" = 'Linux x86_64' ] || fail "machine: expected Linux x86_64, got $(uname -sm)"
  command -v apt-get >/dev/null || fail 'apt-get: not found. The toolkit comes from packages of Debian.'
  work=$(mktemp -d "$cache/unpacking-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  read_lists
  # Each folder gets its final name only when it is complete. So an interrupted run leaves no broken toolkit behind.
  if [ ! -x "$root/bin/nvcc" ]; then
    get_compiler
    rm -rf "$root"
    mv "$work/root" "$root"
  fi
  if [ -n "$arm64" ]; then
    get_arm64
    mv "$work/root/targets/sbsa-linux" "$root/targets/"
  fi
fi
echo "$root"
