set -u
failed=0
expect() {
    wanted=$1
    shift
    got=$(sh trim.sh "$@")
    [ "$got" = "$wanted" ] || { echo "of $*: $got and not $wanted"; failed=1; }
}
expect 'a' ' a '
expect 'a  b' '  a  b  '
expect '*' ' * '
exit $failed
