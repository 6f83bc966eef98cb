#!/bin/sh
# A scripted agent. It reads its prompt on standard input, holds that the prompt is as it must be, and does what its kind
# of task says. $1 is the folder where it leaves notes for the test.
set -eu

stage=$1
prompt=$stage/prompts/$REFILE_TASK_ID-$REFILE_ATTEMPT-$$
cat > "$prompt"
# Its worker was killed before it could say anything.
[ -s "$prompt" ] || { rm -f "$prompt"; exit 1; }
number=$(sed -n 's/^Number: //p' "$prompt")
kind=$(sed -n 's/^Kind: //p' "$prompt")

wrong() {
    echo "task $number ($kind), attempt $REFILE_ATTEMPT: $1" >> "$stage/wrong"
}

required=
if [ "$REFILE_ATTEMPT" -gt 1 ]; then
    [ "$(sed -n 1p "$prompt")" = "## ATTEMPT #$REFILE_ATTEMPT — previous attempt rejected" ] || wrong "the heading is wrong"
    required=$(sed -n '3s/^\*\*Required change\*\*: //p' "$prompt")
    [ -n "$required" ] || wrong "the third line is not the required change"
elif grep -q '^\*\*Required change' "$prompt"; then
    wrong "a first attempt is led by a required change"
fi

# Holds that the attempt is led by this demand.
demanded() {
    [ "$required" = "$1" ] || wrong "demanded is <$required>, not <$1>"
}

# Writes the task's own file, out of the arguments.
own_file() {
    printf '%s\n' "task $number" "$@" > "tasks/$number.txt"
}

case $kind in
shared)
    own_file
    if [ -z "$required" ]; then
        # The first two wait for each other: both begin before either is done, so that one must conflict.
        case $number in 01) other=02 ;; 02) other=01 ;; *) other= ;; esac
        touch "$stage/begun-$number"
        tries=0
        while [ -n "$other" ] && [ ! -e "$stage/begun-$other" ] && [ $tries -lt 100 ]; do
            tries=$((tries + 1))
            sleep 0.05
        done
        echo "$number" >> common.txt
    else
        demanded "Rebase onto main and resolve conflicts before reopening"
        grep -q '^<<<<<<< ' common.txt || wrong "there is no conflict to resolve"
        sed '/^<<<<<<< /d; /^=======$/d; /^>>>>>>> /d' common.txt > common.new
        cat common.new > common.txt
        rm common.new
    fi
    ;;
empty)
    if [ -z "$required" ]; then
        echo "I have thought about it a lot."
    else
        demanded "Push actual file changes — the PR diff is empty"
        own_file
    fi
    ;;
lint)
    if [ -z "$required" ]; then
        own_file BAD
    else
        demanded "Fix lint errors listed in the gate output"
        own_file
    fi
    ;;
retry)
    if [ -z "$required" ]; then
        own_file
    else
        demanded "Add the word polite to the file."
        own_file polite
    fi
    ;;
crash)
    if [ ! -e "$stage/crashed-$number" ]; then
        touch "$stage/crashed-$number"
        echo "this agent breaks down once" >&2
        exit 1
    fi
    own_file
    ;;
never | stubborn) own_file "attempt $REFILE_ATTEMPT" ;;
ask) echo "REFILE: ask Which colour shall it have?" ;;
hold)
    # Goes on until the test says so, with a process of its own beside it.
    sleep 1000 &
    echo $$ > "$stage/held-$number.new"
    mv "$stage/held-$number.new" "$stage/held-$number"
    while [ ! -e "$stage/go-$number" ]; do
        sleep 0.05
    done
    own_file
    ;;
plain | limited | garbage | reject) own_file ;;
*) wrong "there is no such kind of task" ;;
esac
