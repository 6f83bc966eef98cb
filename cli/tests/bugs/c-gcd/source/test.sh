set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cc -std=gnu99 -Wall -o "$dir/test" gcd.c test.c
"$dir/test"
