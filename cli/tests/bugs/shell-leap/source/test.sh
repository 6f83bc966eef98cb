set -u
failed=0
expect() {
    wanted=$1
    shift
    got=$(sh leap.sh "$@")
    [ "$got" = "$wanted" ] || { echo "of $*: $got and not $wanted"; failed=1; }
}
expect yes 2024
expect no 2023
expect no 1900
exit $failed
