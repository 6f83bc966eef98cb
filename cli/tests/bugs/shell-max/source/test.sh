set -u
failed=0
expect() {
    wanted=$1
    shift
    got=$(sh max.sh "$@")
    [ "$got" = "$wanted" ] || { echo "of $*: $got and not $wanted"; failed=1; }
}
expect 3 1 3 2
expect 10 9 10
expect -1 -5 -1
exit $failed
