#!/bin/sh
# Fetches the source of curl, from where the machine has its packages from, and builds it here with the servers of its tests, without what
# the tests by HTTP do not need. Takes apt-get, a C compiler, make and perl; no root.
set -eu

SOURCE=curl_7.88.1.orig.tar.gz
SHA256=cdb38b72e36bc5d33d5b8810f8018ece1baa29a8f215b4495e495ded82bbf3c7

mkdir -p state/lists/partial state/parts cache/archives/partial source
for file in /etc/apt/sources.list.d/*.sources; do
  if grep -qs debian-archive-keyring "$file"; then sed 's/^Types:.*/Types: deb-src/' "$file" >"state/parts/${file##*/}"; fi
done
touch state/sources.list
if [ -f /etc/apt/sources.list ]; then sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >state/sources.list; fi
apt() {
  apt-get --quiet -o Dir::State="$PWD/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/cache" \
    -o Dir::Etc::SourceList="$PWD/state/sources.list" -o Dir::Etc::SourceParts="$PWD/state/parts" "$@"
}
apt update
apt source --download-only --tar-only curl
[ -f "$SOURCE" ] || { echo "this Debian has another curl than $SOURCE" >&2; exit 1; }
echo "$SHA256  $SOURCE" | sha256sum --check --quiet
tar -x --no-same-owner --strip-components 1 -C source -f "$SOURCE"
rm -rf state cache "$SOURCE"

cd source
./configure --quiet --disable-shared --disable-dependency-tracking --disable-manual --disable-ldap --without-ssl --without-libpsl \
  --without-brotli --without-zstd --without-zlib --without-nghttp2 --without-libidn2 CFLAGS=-O0 >&2
for part in lib src tests/server; do make --silent -j2 -C "$part" >&2; done
find . -name '*.o' -delete
find . -mindepth 1 -maxdepth 1 ! -name src ! -name tests ! -name curl-config -exec rm -r {} +
