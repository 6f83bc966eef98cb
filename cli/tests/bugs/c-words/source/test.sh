set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cc -std=c99 -Wall -o "$dir/test" words.c test.c
"$dir/test"
