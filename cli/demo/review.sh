#!/bin/sh
# A scripted reviewer for the demo. It reads what every reviewer is given (issue, demand, diff, gates) on standard input
# and prints one statement.
set -eu

packet=$(cat)

# Counts the calls about one task.
calls() {
    echo x >> "$STAGE/$1"
    wc -l < "$STAGE/$1" | tr -d ' '
}

case $packet in
*"bin/longest"*)
    case $packet in
    *longest-empty*) echo "APPROVE" ;;
    *) echo "RETRY: Add a test for empty input. The longest line of nothing is nothing, and no test says so." ;;
    esac
    ;;
*"bin/squeeze"*)
    case $(calls squeeze) in
    1)
        echo "429 Too Many Requests: try again later" >&2
        exit 1
        ;;
    2) echo "As a reviewer I find this change rather interesting." ;;
    *) echo "APPROVE" ;;
    esac
    ;;
*"so that everybody loves it"*)
    case $REFILE_ATTEMPT in
    1) echo "RETRY: Name the reader in the first sentence. It praises the program and helps nobody." ;;
    2) echo "RETRY: Show one example of each command. Naming a reader is not enough." ;;
    *) echo "RETRY: Cut the text to ten lines. Now it is too long." ;;
    esac
    ;;
*) echo "APPROVE" ;;
esac
