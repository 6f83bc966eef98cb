#!/bin/sh
# A scripted reviewer. It reads what every reviewer is given on standard input and says what the kind of the task wants
# it to say. $1 is the folder where it leaves notes for the test.
set -eu

stage=$1
packet=$(cat)
kind=$(printf '%s\n' "$packet" | sed -n 's/^Kind: //p' | head -n 1)

# Counts the calls about one task.
calls() {
    echo x >> "$stage/reviews-$REFILE_TASK_ID"
    wc -l < "$stage/reviews-$REFILE_TASK_ID" | tr -d ' '
}

case $kind in
retry)
    case $packet in
    *+polite*) echo "APPROVE" ;;
    *) echo "RETRY: Add the word polite to the file. It is rude as it stands." ;;
    esac
    ;;
limited)
    if [ "$(calls)" = 1 ]; then
        echo "429 Too Many Requests: try again later" >&2
        exit 1
    fi
    echo "APPROVE"
    ;;
garbage)
    case $(calls) in
    1) echo "As a reviewer I find this change rather interesting." ;;
    2) ;;
    *) echo "APPROVE" ;;
    esac
    ;;
never) echo "RETRY: Make it number $REFILE_ATTEMPT of its kind. It is not." ;;
stubborn) echo "RETRY: Make it better. It is not good." ;;
reject) echo "REJECT: Nobody needs it." ;;
*) echo "APPROVE" ;;
esac
